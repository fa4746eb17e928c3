"""What several verbs share, and what the command line does around them.

session.py     what click hands to each verb, and the standard streams; link.py: the far end of --remote
options.py     the options of a job; agent.py: what a coding agent may set
submitting.py  the submission of a job, and --after
names.py       the words that name a job
show.py        the text of `status` and `list`; watching.py: its refresh
"""
