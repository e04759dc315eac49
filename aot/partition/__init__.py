"""Cut a joint graph into a forward and a backward graph: what is saved, what is recomputed."""
