"""Whole programs: networks, training, stories."""
