"""Decoding: pods, nodes and volumes of the API into the values of `core`."""
