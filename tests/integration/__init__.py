"""The local cluster and the programs as users run them: real kubectl, the official client, kills."""
