"""Tests of recorded cases."""
