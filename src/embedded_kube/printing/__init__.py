"""Printing: the Table objects that `kubectl get` shows, with the columns of each kind."""
