#!/usr/bin/env bash
# The console is tested in a real browser; this installs Debian's Chromium where it is missing, built
# without windows: a page costs it a third of the time.
set -euo pipefail
command -v chromium-headless-shell >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "chromium-headless-shell was not found: install it with this system's package manager" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
echo "setup: chromium"
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" apt-get -qq install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null
