"""Which compiled version answers a call.

In: the arguments. Out: a key, or a hit in the inline cache.
"""
