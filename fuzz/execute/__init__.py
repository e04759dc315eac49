"""One case: eager and a target on fresh arguments from one seed, judged."""
