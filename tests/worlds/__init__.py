"""The fault simulator: runs the production scheduler and operator in seeded worlds, with a virtual clock and injected
faults.

Here belongs what makes up a world: its event loop, API server, network, nodes and users, the faults, and the checks of
the promises. The unit tests of the simulator are in `tests/unit/worlds`. `python -m tests.worlds` (`make worlds`) runs
it.
"""
