"""Subresources: binding, eviction, scale, logs, exec."""
