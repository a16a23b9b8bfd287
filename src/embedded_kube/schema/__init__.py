"""Schemas: the types of built-in and custom kinds, decoding, pruning, defaulting and OpenAPI documents."""
