"""The compilers under test: how each compiles, what it lacks, what it refuses on purpose."""
