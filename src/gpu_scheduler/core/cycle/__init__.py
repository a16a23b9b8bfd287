"""The scheduling cycle: event handlers update the state, one cycle decides, and one commit holds its decisions.

Commits, retries, recovery, nominations, preemption, drains and explanations belong here. Arithmetic over nodes belongs
in `cluster` and `placement`; sending effects belongs in the adapters outside of `core`.
"""
