"""Patching: JSON patch, merge patch, strategic merge patch and server-side apply.

Each makes a new object from an old one and a request body; the registry decodes and validates the result.
"""
