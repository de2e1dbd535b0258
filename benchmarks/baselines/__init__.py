"""The baseline: differentially private stochastic gradient descent (DP-SGD)."""
