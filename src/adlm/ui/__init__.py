"""A page for choosing epsilon: a local server, or the same page as one file. It spends nothing."""
