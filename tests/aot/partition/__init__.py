"""Tests of partitioners."""
