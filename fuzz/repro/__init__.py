"""A program or recording as a script that needs torch alone."""
