"""Programs of the folder examples run, and do what they say."""
