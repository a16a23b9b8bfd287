"""The admission webhook: sets CUDA_VISIBLE_DEVICES in pods, and refuses or warns of mistakes in what users write.

It reviews pods, jobs, gangs and queues. Reviews are answered by pure functions (`reviews.respond`); the server, the
certificate, the node cache and the lister of queues are around them. What the scheduler decides about a pod after
admission does not belong here.
"""
