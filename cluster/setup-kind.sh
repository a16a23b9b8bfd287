#!/usr/bin/env bash
# Creates the kind cluster gpu-scheduler-cluster unless it exists, labels its nodes node1..node4 and creates the
# namespaces gpu-scheduler-system and gpu-scheduler-tests. Running it again changes nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=gpu-scheduler-cluster

command -v kind >/dev/null || { echo "kind is not on the PATH: https://kind.sigs.k8s.io/docs/user/quick-start/" >&2; exit 1; }
command -v kubectl >/dev/null || { echo "kubectl is not on the PATH: https://kubernetes.io/docs/tasks/tools/" >&2; exit 1; }

if kind get clusters 2>/dev/null | grep -qx "$name"; then
  echo "Cluster $name is there already."
  kind export kubeconfig --name "$name"
else
  kind create cluster --config "$here/kind-config.yaml" --wait 180s
fi
CONTEXT=kind-$name "$here/label-nodes.sh"
echo "Ready: kubectl --context kind-$name get nodes -L gpu-node-name"
