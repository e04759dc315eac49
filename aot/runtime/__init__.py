"""What runs at a call: a plan (pure data), the source generated from it, and its one autograd.Function."""
