"""The checks of `doctor`: each turns facts about the cluster into a verdict and, where needed, a remedy."""
