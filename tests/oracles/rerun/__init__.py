"""Tests of reruns."""
