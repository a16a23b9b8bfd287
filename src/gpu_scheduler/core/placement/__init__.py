"""Placement: the nodes and devices of a whole gang, or the reason why it does not fit.

It reads and tries the cluster state. It does not decide which gang is next; that is `queueing`.
"""
