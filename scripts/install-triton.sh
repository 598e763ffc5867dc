#!/usr/bin/env bash
# The GPU's kernels are compiled, and run by Triton's interpreter, on machines without a GPU; torch's
# CPU builds come without Triton. It is fetched from PyPI into build/triton, only for these tests
# (700 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(uname -s)" = Linux ] || exit 0
version=3.7.1  # that torch 2.13 asks for where it is built with CUDA
[ -d "build/triton/triton-$version.dist-info" ] && exit 0
echo "setup: triton $version"
rm -rf build/triton
.venv/bin/python -m pip --disable-pip-version-check -q install --no-deps --no-compile \
  --target build/triton "triton==$version"
