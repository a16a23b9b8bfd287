"""The commit protocol: intents are written, one swap of the leader Lease commits them, the binder carries them out."""
