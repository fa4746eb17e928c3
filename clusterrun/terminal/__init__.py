"""Printing: tables, and text made safe for a terminal."""
