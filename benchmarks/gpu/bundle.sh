#!/usr/bin/env bash
# Collects what a bare CUDA image lacks (it has python 3.12, torch, triton, transformers, pytest), as
# wheels in build/gpu-wheels, which benchmarks/gpu/run.sh installs. A few megabytes; with --service
# also what serving and its load test need, which is much more.
#   benchmarks/gpu/bundle.sh [--service]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
packages=(redis pydantic pydantic-core annotated-types typing-inspection pydantic-settings
  python-dotenv pytest-asyncio msgspec)
if [ "${1:-}" = --service ]; then
  mapfile -t -O "${#packages[@]}" packages < <("$python" -c '
import tomllib
has = {"torch", "transformers", "numpy", "safetensors", "tokenizers"}
names = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
print(*sorted({name.split(">")[0].split("=")[0].split("[")[0] for name in names} - has), sep="\n")')
  packages+=(starlette anyio idna h11 click sniffio certifi mako alembic greenlet)
fi
rm -rf build/gpu-wheels
"$python" -m pip download -q -d build/gpu-wheels --only-binary :all: --no-deps \
  --python-version 3.12 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux_2_28_x86_64 -c constraints.txt "${packages[@]}"
du -sh build/gpu-wheels
