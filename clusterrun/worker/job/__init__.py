"""What runs on a job's first node, beside the ranks: it starts them, watches them, and starts them again."""
