"""The HTTP API server: routes, verbs, lists, watches, discovery, wire formats."""
