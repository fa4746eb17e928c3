"""What is free now, what is left of a user's limits, and where a job would start soonest."""
