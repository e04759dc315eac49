"""Tests of the fuzzer, and targets that are wrong on purpose."""
