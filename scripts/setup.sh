#!/usr/bin/env bash
# Makes .venv with kvstitch and everything its tests need. Never pulls CUDA where there is no GPU.
#   scripts/setup.sh [extras]        extras: dev (default), "" for serving only, dev,loadtest, …
#   PYTHON            interpreter to build the environment with (3.11 or newer)
#   TORCH_INDEX_URL   where to take torch from; needed on Linux without a GPU if the package index
#                     in use offers torch only with CUDA
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1-dev}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "kvstitch needs Python 3.11 or newer; $("$python" --version) was found. Set PYTHON=python3.11" >&2
  exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
# --no-compile: compiling all modules takes half of the installation; most are never imported.
pip=(.venv/bin/python -m pip --disable-pip-version-check -q install --no-compile -c constraints.txt)

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; }

if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  echo "setup: torch"
  torch=("torch$(grep -oE '^torch==.*' constraints.txt | sed 's/^torch//')")
  [ -z "${TORCH_INDEX_URL:-}" ] || torch+=(--index-url "$TORCH_INDEX_URL")
  if ! has_gpu; then
    # Ask first what would come along: gigabytes of CUDA are of no use here.
    plan=$("${pip[@]}" --dry-run --report - "${torch[@]}" 2>/dev/null || true)
    if grep -qE '"name": "(nvidia-|cuda-)' <<<"$plan"; then
      echo "setup: this package index offers torch only with CUDA, and this machine has no GPU." >&2
      echo "       Set TORCH_INDEX_URL to PyTorch's index of CPU wheels (pytorch.org names it under" >&2
      echo "       'Start locally', compute platform CPU) and run the command again." >&2
      exit 1
    fi
  fi
  "${pip[@]}" "${torch[@]}"
fi
echo "setup: kvstitch and its dependencies"
"${pip[@]}" -e ".${extras:+[$extras]}"
# Without isolation, or each of them would get an environment of its own to be built in.
"${pip[@]}" 'setuptools>=77'
plugins=()
for plugin in plugins/*/; do plugins+=(-e "./${plugin%/}"); done
"${pip[@]}" --no-deps --no-build-isolation "${plugins[@]}"
# faiss-gpu and faiss-cpu are the same module: with the gpu extra only one may stay.
case ",$extras," in *,gpu,*)
  .venv/bin/python -m pip -q uninstall -y faiss-cpu
  "${pip[@]}" --force-reinstall --no-deps "$(grep -oE 'faiss-gpu-cu12[^"]*' pyproject.toml)" ;;
esac
echo "setup: compiling what serving imports"
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c \
  'import kvstitch.service.cli, kvstitch.service.gateway.server, kvstitch.service.worker.__main__'
