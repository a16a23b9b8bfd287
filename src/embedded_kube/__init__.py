"""The local cluster: an embedded Kubernetes API, its controllers, and nodes that run pods as processes."""
