#!/usr/bin/env bash
# The console's pages are checked by axe-core (MPL-2.0), which is fetched from npm into build/axe and
# is no part of kvstitch.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
cd "$(dirname "$0")/.."
version=4.14.1
[ -f "build/axe/$version/axe.min.js" ] && exit 0
if ! command -v npm >/dev/null 2>&1; then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "npm was not found: install it with this system's package manager" >&2
    exit 1
  fi
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  echo "setup: npm"
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" apt-get -qq install -y --no-install-recommends npm >/dev/null
fi
echo "setup: axe-core $version"
mkdir -p "build/axe/$version"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "axe-core@$version" >/dev/null
tar -xzf "$work"/axe-core-*.tgz -C "$work"
cp "$work/package/axe.min.js" "$work/package/LICENSE" "build/axe/$version/"
