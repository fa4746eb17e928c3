"""What a job is: its options, the specification made of them, and the script rendered from that."""
