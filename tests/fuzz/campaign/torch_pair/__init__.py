"""Tests of `fuzz.campaign.torch_pair`."""
