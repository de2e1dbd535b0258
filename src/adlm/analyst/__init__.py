"""Models from releases: objectives, networks and training. It never reads a record."""
