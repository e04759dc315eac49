"""What tests of `aot` share."""
