"""Programs that mutate and alias, generated, run under a compiler and under eager, compared and reduced."""
