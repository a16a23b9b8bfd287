"""Storage: objects in SQLite with the history that watches read, object identity, and the table of kinds."""
