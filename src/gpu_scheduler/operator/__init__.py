"""Jobs that people already write: PyTorchJobs, TFJobs and Volcano's Jobs become gangs of pods."""
