"""Processes behind containers: launcher, Linux namespaces, pod network. The launcher imports it: keep it small."""
