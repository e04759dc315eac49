"""Everything that a function reads besides its arguments, and a generated test that it has not changed."""
