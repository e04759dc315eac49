"""One run of the user's function on fake tensors, turned into a functional graph as it runs."""
