"""Campaigns: many generated cases in worker processes, what differs reduced, bucketed and stored.

pool         worker processes that may die without losing a result
worker       what runs inside one; preload: what they are forked from; jobs: what they can do
driver       which cases run, and how their results are counted
triage       which findings are looked at closely; investigate: how
devices      what programs can run on here
store        the folder with everything that was found
live         what is shown meanwhile
replay       recorded cases run again; reduction: one of them made smaller
"""
