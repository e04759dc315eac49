"""Tests of how one run of a function is recorded."""
