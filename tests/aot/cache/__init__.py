"""Tests of the cache on disk."""
