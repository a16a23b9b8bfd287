"""Pods on a node: pod and container workers, sandbox, environment, volumes, probes, logs, exec."""
