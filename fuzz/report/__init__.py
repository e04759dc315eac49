"""What people and programs read of a campaign.

tables            a campaign, a replay, a corpus file in a terminal
json_output       the same as one JSON object
html_report       one self-contained HTML page; charts: its drawings
bucket_legend     what the words of a bucket's name mean
diff              two campaigns held against each other
torch_comparison  two campaigns under two torches, as text and as one JSON object
comparison_page   the same as an HTML page
"""
