"""What every script here trains."""
