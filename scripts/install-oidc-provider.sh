#!/usr/bin/env bash
# The console's sign-in is tested with oidc-provider (MIT), a certified OpenID provider, which is
# fetched from npm into build/oidc-provider and is no part of kvstitch. It needs Node 20 or newer.
# Does nothing where it is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=tests/e2e/console/provider
there=build/oidc-provider

mkdir -p build
exec 9>build/oidc-provider.lock
flock 9
mark=$(cat $wanted/package.json "$0" | sha256sum | cut -d' ' -f1)
[ "$(cat $there/.installed 2>/dev/null || true)" != "$mark" ] || exit 0
if ! command -v npm >/dev/null 2>&1; then
  echo "npm was not found: scripts/install-axe.sh installs it" >&2
  exit 1
fi
echo "setup: oidc-provider"
mkdir -p $there
cp $wanted/package.json $there/
npm install --prefix $there --silent --no-audit --no-fund --no-package-lock
echo "$mark" >$there/.installed
