"""Tests of which compiled version answers a call."""
