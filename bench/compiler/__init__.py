"""Measurements of the compiler: time and memory of compiles and of calls."""
