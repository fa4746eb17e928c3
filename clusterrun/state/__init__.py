"""The state of runs: records and queue joined, filtered, watched, shown and cancelled."""
