"""Admission: what the API server adds or refuses before a write, and calls to admission webhooks."""
