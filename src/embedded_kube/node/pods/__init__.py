"""Pods on a node: containers, environment, probes, volumes, logs, terminals."""
