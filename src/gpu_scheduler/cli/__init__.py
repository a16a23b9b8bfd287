"""The command line: options, wiring of the services, signals, and the text of tables and reports.

Each command is one module, imported when the command runs. Decisions belong in `core`, Kubernetes requests in `k8s`.
"""
