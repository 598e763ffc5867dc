#!/usr/bin/env bash
# Everything that needs a GPU, in one call of under ten minutes: its tests, then its table, of which
# every line is written when it is measured.
#   benchmarks/gpu/run.sh [--device cpu] [folder for the results]
# With --device cpu the same at a tiny shape, which only shows that it runs. A machine without a
# network gets what its image lacks from build/gpu-wheels (benchmarks/gpu/bundle.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
device=cuda
if [ "${1:-}" = --device ]; then
  device=$2
  shift 2
fi
if [ "$device" = cuda ]; then
  "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || {
    echo "torch finds no GPU here" >&2
    exit 2
  }
fi
"$python" -c 'import pydantic_settings, pytest_asyncio, redis' 2>/dev/null ||
  "$python" -m pip install -q --no-index --no-deps build/gpu-wheels/*.whl
# By file: the other tests need packages that a bare CUDA image lacks.
mapfile -t tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
timeout 220 "$python" -m pytest -m gpu -rs --durations 5 "${tests[@]}" ||
  echo "GPU tests: exit code $?" >&2
tiny=()
[ "$device" = cuda ] || tiny=(--quick --device "$device" --repetitions 2)
timeout 370 "$python" -m benchmarks.gpu --repetitions 5 "${tiny[@]}" ${1:+--out "$1"}
