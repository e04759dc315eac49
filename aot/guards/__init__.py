"""Everything that a function reads besides its arguments, and a generated test that it has not changed.

Also what it changes of that, which is put back after the trace and made at each call.
Invariant: after a refusal all that the collection has come to is as it was before the call.
"""
