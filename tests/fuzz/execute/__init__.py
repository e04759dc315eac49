"""Tests of one case under a target."""
