"""Programs of public reports, by what they are about."""
