"""Cluster state: free capacity of nodes and devices, pod counts, topology domains, and trials that can be undone.

Tables and arithmetic over them belong here. Rules that decide whether a pod fits belong in `placement`; gangs and
queues are unknown here.
"""
