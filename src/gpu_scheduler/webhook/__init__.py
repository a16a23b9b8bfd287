"""The admission webhook: sets CUDA_VISIBLE_DEVICES in pods, and refuses or warns of mistakes in pods, jobs and gangs.

Reviews are answered by pure functions (`reviews.respond`); the server, the certificate and the node cache are around
them. What the scheduler decides about a pod after admission does not belong here.
"""
