"""A program as pure data. Nothing here runs anything."""
