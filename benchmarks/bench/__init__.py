"""Ratios of speed and memory, side by side in one run; never absolute times."""
