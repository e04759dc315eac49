"""Tests of the operator table."""
