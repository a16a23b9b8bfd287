"""Decoding of pods: shape, selectors and affinities, GPU map, and the annotations that record devices.

The scheduler, the webhook and the operator decode pods with these functions, so they agree on them.
"""
