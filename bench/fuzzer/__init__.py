"""Measurements of the fuzzer: speed, and which seeded bugs, mutants and public reports it finds."""
