"""Admission: built-in mutations and checks of a request, and calls to admission webhooks.

Rules that need only the object itself belong to validation/.
"""
