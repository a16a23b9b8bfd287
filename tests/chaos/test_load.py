"""The load of the chaos tests."""

from __future__ import annotations

import random
import threading
from unittest.mock import Mock

from tests.chaos.judge import Judge
from tests.chaos.load import LoadGenerator


def test_a_load_generator_that_is_stopped_ends() -> None:
    load = LoadGenerator(Mock(), Judge({}), {}, random.Random(1), 8)
    load.close()
    load.stop()
    load.start()
    load.join()
    assert load.failure is None
    assert load not in threading.enumerate()
