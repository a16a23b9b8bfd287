"""The job kinds that the operator runs: one file for each, and the table of all of them.

What a kind looks like (templates, roles, minimums) belongs in `gangs.jobs`; what every kind shares, in `operator`.
"""

from __future__ import annotations

from gpu_scheduler.operator.frameworks import pytorch, tensorflow, volcano_status
from gpu_scheduler.operator.frameworks.job_controller import JobController

__all__ = ["JOB_CONTROLLERS", "JobController"]

JOB_CONTROLLERS: tuple[JobController, ...] = (pytorch.CONTROLLER, tensorflow.CONTROLLER, volcano_status.CONTROLLER)
