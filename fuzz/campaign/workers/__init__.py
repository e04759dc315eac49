"""Processes that run cases: on this machine or on a cluster. Items and answers are plain data."""
