"""Report: a campaign as text, HTML and data, for people and for programs.

In: a `Summary` of a campaign. Out: text. Modules in reading order:

- `causes`: the buckets of one bug as one row.
- `screen`, `tables`: a campaign, a replay or a corpus file on a terminal.
- `json_output`: the same as one JSON object; `ci_formats`: JUnit XML and SARIF.
- `html_report`: one self-contained HTML page; `charts`: its drawings.
- `bucket_legend`: what the words of a bucket's name mean.
- `diff`: two campaigns compared.
- `torch_comparison`, `comparison_page`: two campaigns under two versions of torch, as text and as a page.
- `history`, `history_page`: the campaigns of many nights, as text and as a page.

Invariant: nothing here runs a program.
"""
