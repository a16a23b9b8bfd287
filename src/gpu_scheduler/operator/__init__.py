"""Jobs that people already write: PyTorchJobs and TFJobs become gangs of pods."""
