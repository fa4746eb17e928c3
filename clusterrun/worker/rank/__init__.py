"""What runs in each rank, from its start to its end record."""
