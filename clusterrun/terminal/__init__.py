"""Printing: tables, units, and text made safe for a terminal."""
