"""Placement: the nodes and devices of a whole gang, or the reason why it does not fit.

Fit rules, node scores, topology domains and the search belong here; they read the cluster state and try changes on it.
Which gang is tried next belongs in `queueing`, and what follows from a placement belongs in `cycle`.
"""
