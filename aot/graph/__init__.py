"""The fx graph: how it is built, and what is known of each value.

Also which nodes are pure, and passes over finished graphs.
"""
