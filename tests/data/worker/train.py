"""A neighbour with the name of one of the worker's own modules."""

WHO = "the user's train"
