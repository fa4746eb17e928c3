"""What runs on a node beside the ranks, and what its host says; it needs the standard library only."""
