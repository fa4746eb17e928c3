"""A run's files: records, claims, submissions, end records, progress and logs, in one layout on disk."""
