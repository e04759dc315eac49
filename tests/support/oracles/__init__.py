"""What tests of `oracles` share."""
