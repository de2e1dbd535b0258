"""Reads the release, forever: objectives, networks and training. Never sees a record."""
