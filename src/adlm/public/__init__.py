"""Known without the data: domains, data sets by name, priors and frozen features."""
