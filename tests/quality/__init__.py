"""Tests of the whole: what campaigns reach and find."""
