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
pip=(.venv/bin/python -m pip --disable-pip-version-check -q)
"${pip[@]}" install --no-compile -c constraints.txt 'uv>=0.8,<1'
install() {  # uv takes a fifth of pip's time; what it cannot install here, pip is asked for
  .venv/bin/uv pip install -q --python .venv/bin/python -c constraints.txt "$@" ||
    "${pip[@]}" install --no-compile -c constraints.txt "$@"
}
# uv does not read pip's configuration, where an organisation's package indexes stand.
config=$(.venv/bin/python -m pip config list)
configured() { sed -nE "s/^(:env:|global|install)\\.$1='(.*)'$/\\2/p" <<<"$config" | head -1 | sed 's/\\n/ /g'; }
: "${UV_DEFAULT_INDEX=$(configured index-url)}" "${UV_INDEX=$(configured extra-index-url)}"
: "${UV_FIND_LINKS=$(configured find-links | tr ' ' ,)}" "${UV_CONSTRAINT=$(configured constraint)}"
: "${SSL_CERT_FILE=$(configured cert)}" "${UV_INDEX_STRATEGY=unsafe-best-match}"
for name in UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS UV_CONSTRAINT SSL_CERT_FILE UV_INDEX_STRATEGY; do
  [ -z "${!name}" ] || export "${name?}"
done

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; }

if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  echo "setup: torch"
  torch=("torch$(grep -oE '^torch==.*' constraints.txt | sed 's/^torch//')")
  [ -z "${TORCH_INDEX_URL:-}" ] || torch+=(--index-url "$TORCH_INDEX_URL")
  if ! has_gpu; then
    # Ask first what would come along: gigabytes of CUDA are of no use here.
    plan=$(.venv/bin/uv pip install --python .venv/bin/python --dry-run "${torch[@]}" 2>&1 || true)
    if grep -qE '^ \+ (nvidia|cuda)-' <<<"$plan"; then
      echo "setup: this package index offers torch only with CUDA, and this machine has no GPU." >&2
      echo "       Set TORCH_INDEX_URL to PyTorch's index of CPU wheels (pytorch.org names it under" >&2
      echo "       'Start locally', compute platform CPU) and run the command again." >&2
      exit 1
    fi
  fi
  install "${torch[@]}"
fi
echo "setup: kvstitch and its dependencies"
install -e ".${extras:+[$extras]}"
# Without isolation, or each of them would get an environment of its own to be built in.
install 'setuptools>=77'
plugins=()
for plugin in plugins/*/; do plugins+=(-e "./${plugin%/}"); done
install --no-deps --no-build-isolation "${plugins[@]}"
# faiss-gpu and faiss-cpu are the same module: with the gpu extra only one may stay.
case ",$extras," in *,gpu,*)
  "${pip[@]}" uninstall -y faiss-cpu
  install --force-reinstall --no-deps "$(grep -oE 'faiss-gpu-cu12[^"]*' pyproject.toml)" ;;
esac
echo "setup: compiling what serving imports"
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c \
  'import kvstitch.service.cli, kvstitch.service.gateway.server, kvstitch.service.worker.__main__'
