"""Tests of what shares memory: arguments, outputs, views of another dtype."""
