"""Tests of Inductor as a graph compiler."""
