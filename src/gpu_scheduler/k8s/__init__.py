"""Kubernetes machinery: client, informers, work queue, rate limiter, leader election, Events, quantities, health, logs.

It knows neither gangs nor GPUs, and imports nothing of this project but `base`.
"""
