"""What people and programs read of a campaign.

tables       a campaign, a replay, a corpus file in a terminal
objects      the same as one JSON object
page         one self-contained HTML page; charts: its drawings
difference   two campaigns held against each other
"""
