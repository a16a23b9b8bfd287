#!/usr/bin/env bash
# Labels the nodes of a cluster with the names that maps use (gpu-node-name=node1, node2, ...) and creates the project's
# namespaces.
# Running it again changes nothing.
#
#   cluster/label-nodes.sh                  the workers of the current context, by name; all nodes if there are no workers
#   cluster/label-nodes.sh gpu-a gpu-b      these, in this order
#   CONTEXT=other cluster/label-nodes.sh    another context of the kubeconfig
set -euo pipefail

command -v kubectl >/dev/null || { echo "kubectl is not on the PATH: https://kubernetes.io/docs/tasks/tools/" >&2; exit 1; }

ask() {
  if [ -n "${CONTEXT:-}" ]; then
    kubectl --context "$CONTEXT" "$@"
  else
    kubectl "$@"
  fi
}

if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046  # names of nodes have no blanks
  set -- $(ask get nodes -l '!node-role.kubernetes.io/control-plane' -o 'jsonpath={.items[*].metadata.name}')
fi
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046
  set -- $(ask get nodes -o 'jsonpath={.items[*].metadata.name}')
fi
if [ $# -eq 0 ]; then
  echo "The cluster has no nodes." >&2
  exit 1
fi

number=0
for node in "$@"; do
  number=$((number + 1))
  ask label node "$node" "gpu-node-name=node$number" --overwrite
done
for namespace in gpu-scheduler-system gpu-scheduler-tests; do
  ask get namespace "$namespace" >/dev/null 2>&1 || ask create namespace "$namespace"
done
