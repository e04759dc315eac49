"""Tests of `aot.analysis`."""
