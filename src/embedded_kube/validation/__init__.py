"""Validation: which values an object may have, and what an update may change, beyond the types of the schema.

Rules are tables by type, so that a pod template obeys the rules of a pod. The messages are those of a real API server,
and the differential tests compare them.
"""
