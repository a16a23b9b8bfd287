"""The live scheduler: watches the API, feeds the engine, carries out its decisions and reports them.

Decisions belong in `core`, gang APIs in `gangs`, generic Kubernetes machinery in `k8s`.
"""
