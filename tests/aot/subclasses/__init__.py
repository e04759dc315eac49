"""Tests of wrapper subclasses."""
