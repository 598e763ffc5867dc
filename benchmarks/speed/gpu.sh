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
# By file: the other tests need packages that a bare CUDA image lacks.
mapfile -t tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
timeout 220 "$python" -m pytest -m gpu -rs --durations 5 "${tests[@]}" ||
  echo "GPU tests: exit code $?" >&2
timeout 320 "$python" -m benchmarks.speed.gpu --repetitions 5 ${1:+--out "$1"}
