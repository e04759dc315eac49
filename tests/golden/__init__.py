"""Golden files: what each stage of the compiler prints, for small functions."""
