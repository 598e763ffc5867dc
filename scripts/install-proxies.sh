#!/usr/bin/env bash
# What `make recipes` serves with and reads with, from Debian, where it is missing: nginx, Caddy, jq, sqlite3.
set -euo pipefail
missing=()
command -v nginx >/dev/null 2>&1 || missing+=(nginx-light)
command -v caddy >/dev/null 2>&1 || missing+=(caddy)
command -v jq >/dev/null 2>&1 || missing+=(jq)
command -v sqlite3 >/dev/null 2>&1 || missing+=(sqlite3)
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "not found, install them with this system's package manager: ${missing[*]}" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "setup: ${missing[*]}"
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
