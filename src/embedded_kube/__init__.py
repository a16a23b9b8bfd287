"""A local Kubernetes in one process: API server over SQLite, controllers, and nodes that run pods as processes.

What belongs here is Kubernetes itself, as far as one machine needs it. Gangs, GPUs and this project's scheduler do not:
the caller passes them in (CustomResourceDefinitions, add-ons, node admission). README.md has a map of the folders.
"""
