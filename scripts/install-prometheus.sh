#!/usr/bin/env bash
# Dashboards and rules are tested against a real Prometheus and with promtool; this installs both
# where they lack.
set -euo pipefail
command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "prometheus and promtool were not found: install Prometheus 2.40 or newer" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "setup: prometheus"
"${as_root[@]}" apt-get -qq update
# The package would start a server on the default port; the tests want none running.
"${as_root[@]}" env RUNLEVEL=1 apt-get -qq install -y --no-install-recommends prometheus >/dev/null
