"""The fx graph.

How it is built, what is known of each value, which nodes are pure, and passes over finished graphs.
"""
