"""Queueing: what a gang requests, which queue is charged, and the order in which waiting gangs are tried."""
