"""Cluster state: free capacity of nodes and devices, pod counts, topology domains, trials that can be undone.

Rules that decide whether a pod fits belong in `placement`.
"""
