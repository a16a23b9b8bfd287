"""What a pod asks for: its shape, selectors and affinities, GPU map, and the annotations that carry its devices.

The scheduler, the webhook and the operator all read pods with these functions, so they give the same verdict.
"""
