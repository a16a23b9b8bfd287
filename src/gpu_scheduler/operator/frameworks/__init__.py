"""The job kinds that the operator runs: one file for each, and the table of all of them.

What a kind looks like (templates, roles, minimums) belongs in `gangs.jobs`; what every kind shares, in `operator`.
"""

from __future__ import annotations

from gpu_scheduler.operator.frameworks import pytorch, tensorflow, volcano_reconcile
from gpu_scheduler.operator.frameworks.framework import JobFramework

__all__ = ["FRAMEWORKS", "JobFramework"]

FRAMEWORKS: tuple[JobFramework, ...] = (pytorch.FRAMEWORK, tensorflow.FRAMEWORK, volcano_reconcile.FRAMEWORK)
