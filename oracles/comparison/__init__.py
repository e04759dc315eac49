"""Two observations in, findings out, each with its clause."""
