"""What `adlm` is compared with: differentially private stochastic gradient descent."""
