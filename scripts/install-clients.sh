#!/usr/bin/env bash
# Installs the clients that tests/e2e/clients runs against a live service: Python's into
# build/clients-env, JavaScript's into build/clients-node. Apart from the service's own environment,
# because they must not decide its versions. Does nothing where it is done already.
#   PYTHON   interpreter to build the environment with (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=tests/e2e/clients
python=build/clients-env
node=build/clients-node

mkdir -p build
exec 9>build/clients.lock
flock 9

mark=$(cat $wanted/requirements.txt $wanted/constraints.txt "$0" | sha256sum | cut -d' ' -f1)
if [ "$(cat $python/.installed 2>/dev/null || true)" != "$mark" ]; then
  echo "setup: clients in Python"
  "${PYTHON:-python3}" -m venv $python
  if command -v uv >/dev/null 2>&1; then
    VIRTUAL_ENV=$PWD/$python uv pip install -q -r $wanted/requirements.txt -c $wanted/constraints.txt
  else
    $python/bin/python -m pip --disable-pip-version-check -q install --no-compile \
      -r $wanted/requirements.txt -c $wanted/constraints.txt
  fi
  echo "$mark" >$python/.installed
fi

# Of one package each: Dify's and Anthropic's own, and OpenAI's of this month and of a year ago, against whose types
# answers are held.
single() {
  if [ "$(cat "build/$1/.installed" 2>/dev/null || true)" != "$2" ]; then
    echo "setup: $2"
    "${PYTHON:-python3}" -m venv "build/$1"
    "build/$1/bin/python" -m pip --disable-pip-version-check -q install --no-compile "$2"
    echo "$2" >"build/$1/.installed"
  fi
}
single clients-dify dify-plugin==0.7.4
single clients-anthropic anthropic==2.14.0
single openai-2026-11 openai==3.57.0
single openai-2025-11 openai==2.8.1

if ! command -v npm >/dev/null 2>&1; then
  echo "setup: no npm here, so the clients in JavaScript are left out" >&2
  exit 0
fi
mark=$(cat $wanted/package.json "$0" | sha256sum | cut -d' ' -f1)
if [ "$(cat $node/.installed 2>/dev/null || true)" != "$mark" ]; then
  echo "setup: clients in JavaScript"
  mkdir -p $node
  cp $wanted/package.json $node/
  npm install --prefix $node --silent --no-audit --no-fund --no-package-lock
  echo "$mark" >$node/.installed
fi
