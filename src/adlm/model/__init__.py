"""Models from releases: heads, networks and training. Nothing here reads a record."""
