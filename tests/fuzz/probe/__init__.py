"""Tests of `fuzz.probe`."""
