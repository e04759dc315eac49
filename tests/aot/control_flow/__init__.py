"""Tests of operators that take functions."""
