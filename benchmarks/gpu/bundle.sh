#!/usr/bin/env bash
# Collects what a bare CUDA image lacks (it has python 3.12, torch, triton, transformers, pytest), as
# wheels in build/gpu-wheels, which benchmarks/gpu/run.sh installs. A few megabytes.
#   benchmarks/gpu/bundle.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
rm -rf build/gpu-wheels
"$python" -m pip download -q -d build/gpu-wheels --only-binary :all: --no-deps \
  --python-version 3.12 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  -c constraints.txt \
  redis pydantic pydantic-core annotated-types typing-inspection pydantic-settings python-dotenv \
  pytest-asyncio msgspec
du -sh build/gpu-wheels
