"""The files of runs: records, claims, submissions, end records and progress."""
