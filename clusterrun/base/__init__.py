"""What all rooms share, without I/O: errors with their hints, jobs with their states, and units."""
