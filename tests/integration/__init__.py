"""The local cluster as its users meet it: real kubectl, the official client, kills."""
