"""Reads the private records: clips, charges, adds noise, releases."""
