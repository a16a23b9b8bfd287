"""The scheduling cycle: events update the state, one cycle decides, and everything that follows from a decision.

Commits, retries, recovery, preemption and drains belong here; node arithmetic belongs in `cluster` and `placement`.
"""
