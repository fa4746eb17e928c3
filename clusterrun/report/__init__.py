"""What a run was like, for people: its page, and the efficiency card of its end.

collect.py    what a page shows: records, state, cause, and what differs from another run; `--json` prints it
timeline.py   the phases of the ranks
draw.py       curves as charts
page.py       fills the templates
card.py       the efficiency card, from what usage.py reads
"""
