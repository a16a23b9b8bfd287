"""Validation: what fields, pods and other kinds may contain, and what an update may change."""
