"""What a run was like, for people: the efficiency card of its end (card.py, from what usage.py reads)."""
