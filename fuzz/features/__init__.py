"""Names of what is hard about a program: what reports count and what targets may lack."""
