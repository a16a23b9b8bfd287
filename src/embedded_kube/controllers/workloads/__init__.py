"""Workload controllers: Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs."""
