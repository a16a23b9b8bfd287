"""Reviews of queues: the check of one queue against all others, and the list of the others.

The check is a pure function. Only the list talks to the API server. What a queue may use is not decided here.
"""
