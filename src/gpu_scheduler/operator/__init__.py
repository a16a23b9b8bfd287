"""The operator: creates and watches the pods of PyTorchJobs, TFJobs and Volcano Jobs, each job as one gang.

Placing the pods belongs in `scheduler`; what a job kind looks like belongs in `gangs.jobs`.
"""
