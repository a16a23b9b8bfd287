"""The commands: flags, wiring, signals, logging, tables."""
