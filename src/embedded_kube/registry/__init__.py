"""The registry: what create, update, patch and delete do to an object, before and after it is stored.

Here are also the table of the served kinds and the rules of object metadata that all kinds share. Rules of one kind
belong to schema/, validation/ or admission/, HTTP to server/.
"""
