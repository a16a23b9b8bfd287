#!/bin/sh
# Creates the webhook's certificates in certs/ with `gpu-scheduler certs`; see its --help.
set -eu
cd "$(dirname "$0")/.."
if command -v gpu-scheduler >/dev/null; then
  exec gpu-scheduler certs "$@"
fi
make .venv/.project-installed
exec .venv/bin/gpu-scheduler certs "$@"
