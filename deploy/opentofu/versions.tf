terraform {
  required_version = ">= 1.8.0, < 2.0.0"

  required_providers {
    digitalocean = {
      source  = "digitalocean/digitalocean"
      version = "~> 2.67"
    }
  }
}

# The token is read from the environment: DIGITALOCEAN_TOKEN.
provider "digitalocean" {}
