"""Reads the records, once: clips, charges, adds noise, releases."""
