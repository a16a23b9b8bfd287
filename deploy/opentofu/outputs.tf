output "cluster_id" {
  description = "Id of the cluster, for doctl."
  value       = digitalocean_kubernetes_cluster.main.id
}

output "endpoint" {
  description = "Address of its API server."
  value       = digitalocean_kubernetes_cluster.main.endpoint
}

output "kubernetes_version" {
  description = "The version of Kubernetes."
  value       = digitalocean_kubernetes_cluster.main.version
}

output "kubeconfig" {
  description = "The kubeconfig; it expires after seven days, then apply again."
  value       = digitalocean_kubernetes_cluster.main.kube_config[0].raw_config
  sensitive   = true
}
