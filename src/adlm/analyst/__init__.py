"""Reads releases: objectives, networks and training. Never sees a record."""
