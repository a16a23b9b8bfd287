"""From what a cluster is like to lines of text: pure functions, so that a screen can be tested letter by letter."""
