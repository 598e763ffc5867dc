#!/usr/bin/env bash
# Everything that needs a GPU, in one call of under ten minutes: its tests, then its table.
#   benchmarks/speed/gpu.sh [folder for the results]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || {
  echo "torch finds no GPU here" >&2
  exit 2
}
timeout 240 "$python" -m pytest -m gpu -rs tests || echo "GPU tests: exit code $?" >&2
timeout 330 "$python" -m benchmarks.speed.gpu --repetitions 5 ${1:+--out "$1"}
