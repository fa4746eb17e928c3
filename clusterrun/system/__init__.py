"""The operating system: running commands with a time limit, and opening files that others could have written."""
