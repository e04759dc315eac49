"""Measurements of the compiler, one command each; `python -m bench --help` lists them."""
