"""Tests of the minifier."""
