"""The pure scheduling engine: events in, effects out, time is an argument.

This package decides what runs where. It has no I/O, clock, environment, logging or randomness, and imports only the
standard library, numpy and `base`. Reading and writing the Kubernetes API belongs in `k8s` and `scheduler`; sentences
for users belong in `scheduler.status` and `cli`.
"""
