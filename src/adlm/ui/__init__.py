"""One page to choose an epsilon by: a local server, or the same page as one file. It spends nothing."""
