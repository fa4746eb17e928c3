"""What the loop in train.py is made of: settings, batches, schedule, precision, checkpoints, stopping, reports."""
