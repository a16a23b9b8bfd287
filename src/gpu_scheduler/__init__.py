"""A Kubernetes gang scheduler for GPUs: pods that belong together start together, on chosen GPU indices."""

__version__ = "0.1.0"
