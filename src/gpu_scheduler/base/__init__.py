"""Leaf modules that every other package may import: backoff, certificates, YAML documents, text formatting.

A module belongs here if it knows neither Kubernetes nor gangs and imports nothing else of this project.
"""
