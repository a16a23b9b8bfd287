"""Denials: pod settings that bypass the scheduler. The command line reads them without loading the webhook."""

from __future__ import annotations

from enum import Enum


class Denial(Enum):
    """Pod settings that bypass the scheduler. A pod with one is refused if the policy denies it, else warned of."""

    NVIDIA_VISIBLE_DEVICES = "nvidia-visible-devices"
    PRIVILEGED = "privileged"
    NODE_NAME = "node-name"
