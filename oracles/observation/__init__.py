"""Call a function on fresh arguments and record everything that the contract names."""
