"""Tests of observations."""
