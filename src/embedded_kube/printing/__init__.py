"""Printing: the tables that `kubectl get` shows."""
