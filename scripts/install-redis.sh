#!/usr/bin/env bash
# The tests run a real redis-server on ports of their own; this installs the binary where it lacks.
set -euo pipefail
command -v redis-server >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "redis-server was not found: install Redis 6 or newer with this system's package manager" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "setup: redis-server"
"${as_root[@]}" apt-get -qq update
# The package would start a server on the default port; the tests want none running.
"${as_root[@]}" env RUNLEVEL=1 apt-get -qq install -y --no-install-recommends redis-server >/dev/null
