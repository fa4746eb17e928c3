"""Why a job is pending, and why a job ended."""
