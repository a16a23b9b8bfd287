"""Processes behind containers: the launcher, namespaces, networks. Imported by the launcher, so it stays small."""
