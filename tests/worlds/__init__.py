"""The simulation: the production programs in one seeded world, with a virtual clock and faults on purpose."""
