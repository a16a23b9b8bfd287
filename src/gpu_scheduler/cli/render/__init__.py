"""Rendering: pure functions from engine state to lines of text and JSON."""
