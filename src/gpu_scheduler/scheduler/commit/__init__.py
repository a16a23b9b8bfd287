"""The commit protocol: intents are written, one swap of the leader Lease commits them, the binder carries them out.

Here belongs what reads or writes Placements, the committed set of the Lease, binds and deletes. Decisions do not.
"""
