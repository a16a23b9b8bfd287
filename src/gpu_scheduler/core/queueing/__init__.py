"""Queueing: what a gang requests, which queue is charged for it, and the order in which waiting gangs are tried.

Quotas, the waiting order and the rotation of unused reservations belong here. Finding nodes belongs in `placement`;
preemption and drains, which change what runs, belong in `cycle`.
"""
