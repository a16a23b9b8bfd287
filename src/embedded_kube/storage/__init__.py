"""Storage: objects in SQLite and in memory, with the history of changes that watches read.

The store knows neither kinds nor schemas; those belong to registry/ and schema/.
"""
