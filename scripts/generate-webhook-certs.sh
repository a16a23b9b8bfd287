#!/bin/sh
# Makes the webhook's certificates in certs/: a thin wrapper around `gpu-scheduler certs`, which has --help.
set -eu
cd "$(dirname "$0")/.."
if command -v gpu-scheduler >/dev/null; then
  exec gpu-scheduler certs "$@"
fi
make .venv/.project-installed
exec .venv/bin/gpu-scheduler certs "$@"
