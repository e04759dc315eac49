"""Recorded cases: files, folders, buckets (one bug, one key) and known issues."""
