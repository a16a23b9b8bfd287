"""The implementation of `validate`: starts test pods with a GPU map and compares them with the map."""
