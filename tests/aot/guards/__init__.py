"""Tests of what a function reads and writes besides its arguments."""
