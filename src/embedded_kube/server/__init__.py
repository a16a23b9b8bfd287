"""The HTTP API server: request paths, bodies, verbs, lists, watches, discovery, authentication.

What a verb does to an object belongs to registry/, subresources other than status to subresources/.
"""
