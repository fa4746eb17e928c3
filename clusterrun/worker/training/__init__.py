"""The parts of the loop in train.py: settings, batches, schedule, precision, checkpoints, stopping, reports."""
