"""Submission: the request, the plan, the submission protocol, and its recovery."""
