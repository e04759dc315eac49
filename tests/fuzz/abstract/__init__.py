"""Tests of what eager would do, as the generator knows it."""
