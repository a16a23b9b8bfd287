"""The pure scheduling engine: events in, effects out; no I/O, no clock, no environment."""
