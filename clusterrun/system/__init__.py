"""The operating system: run commands with a time limit, and open files that other users may have written."""
