"""Tests of campaigns and their workers."""
