# A small cluster: one node for the system, and nodes for jobs.

data "digitalocean_kubernetes_versions" "chosen" {
  version_prefix = "${var.kubernetes_minor}."

  lifecycle {
    postcondition {
      condition     = length(self.valid_versions) > 0
      error_message = "DigitalOcean does not offer this version; `doctl kubernetes options versions` lists what there is."
    }
  }
}

resource "digitalocean_kubernetes_cluster" "main" {
  name         = var.name
  region       = var.region
  version      = data.digitalocean_kubernetes_versions.chosen.latest_version
  auto_upgrade = true
  tags         = var.tags

  maintenance_policy {
    day        = "sunday"
    start_time = "04:00"
  }

  node_pool {
    name       = "system"
    size       = var.node_size
    node_count = 1
    tags       = var.tags
    labels = {
      "gpu-scheduler.io/pool" = "system"
    }
  }

  lifecycle {
    # The provider applies patches (auto_upgrade): a newer patch must not show as a change.
    ignore_changes = [version]
  }
}

resource "digitalocean_kubernetes_node_pool" "workers" {
  cluster_id = digitalocean_kubernetes_cluster.main.id
  name       = "workers"
  size       = var.node_size
  node_count = var.worker_count
  tags       = var.tags
  labels = {
    "gpu-scheduler.io/pool" = "workers"
  }
}
