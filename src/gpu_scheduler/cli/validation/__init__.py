"""`validate` behind the command: starts test pods with a GPU map and compares what runs with what the map says."""
