"""The checks of `doctor`: each one turns what was found in the cluster into a verdict and, where needed, a remedy."""
