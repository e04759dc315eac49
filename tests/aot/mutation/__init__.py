"""Tests of the clause that mutations are the caller's to see."""
