"""Schemas: the types of built-in and custom kinds, and what follows from them.

That is decoding, pruning of unknown fields, defaulting, structural schemas of CRDs, and OpenAPI documents. What values
a field may have is in validation/.
"""
