"""From records to a release: the stages of a release, and the planner that chooses them."""
