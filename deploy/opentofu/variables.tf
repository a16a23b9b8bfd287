variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "gpu-scheduler"

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.name))
    error_message = "The name must be lower-case letters, digits and dashes, such as gpu-scheduler."
  }
}

variable "region" {
  description = "Where the cluster runs, such as fra1 or nyc1."
  type        = string
  default     = "fra1"

  validation {
    condition     = can(regex("^[a-z]{3}[0-9]$", var.region))
    error_message = "The region must be three letters and a digit, such as fra1."
  }
}

variable "kubernetes_minor" {
  description = "Minor version of Kubernetes; its newest patch is used."
  type        = string
  default     = "1.35"

  validation {
    condition     = can(regex("^1\\.(3[0-9]|[4-9][0-9])$", var.kubernetes_minor))
    error_message = "The version must be 1.30 or newer, without a patch, such as 1.35."
  }
}

variable "node_size" {
  description = "Size of every node; the default has 4 CPUs and 8 GB."
  type        = string
  default     = "s-4vcpu-8gb"

  validation {
    condition     = can(regex("^[a-z0-9-]+$", var.node_size))
    error_message = "The size must be a name from `doctl kubernetes options sizes`, such as s-4vcpu-8gb."
  }
}

variable "worker_count" {
  description = "Nodes for jobs, besides the one for the scheduler and the rest of the system."
  type        = number
  default     = 2

  validation {
    condition     = var.worker_count >= 1 && var.worker_count <= 20 && floor(var.worker_count) == var.worker_count
    error_message = "The number of workers must be a whole number from 1 to 20."
  }
}

variable "tags" {
  description = "Tags of the cluster and its nodes."
  type        = list(string)
  default     = ["gpu-scheduler"]
}
