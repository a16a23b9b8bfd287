"""Subresources other than status: binding, eviction, scale, logs, exec, attach, ephemeral containers, token."""
