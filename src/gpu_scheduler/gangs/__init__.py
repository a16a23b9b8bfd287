"""Every way to define a gang: dialects, the registry of gangs, job kinds, queues, and the names of the public contract.

It turns API objects into the values of `core`. Carrying out decisions belongs in `scheduler`.
"""
