"""The adapter to the Kubernetes API: what is seen becomes events, what is decided becomes requests."""
