"""Tests of wrappers and of the compilers below them."""
