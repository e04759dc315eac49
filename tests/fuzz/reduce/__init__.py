"""Tests of reduction."""
