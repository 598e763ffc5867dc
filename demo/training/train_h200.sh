#!/usr/bin/env bash
# Trains the large demo model on one GPU, in slices that each end within ten minutes.
#
#   bash demo/training/train_h200.sh          until it is trained: about 25 minutes, three slices
#   bash demo/training/train_h200.sh 1        one slice; call it again and it goes on
#
# A slice continues from the checkpoint in demo/.training/large, and writes the model as trained so far
# to demo/.training/large_model. If OUT names a folder, weights (in files below 16 MiB), the rest of the
# model (as one archive) and the log are copied there. PYTHON is the interpreter, TRAINING replaces
# demo/.training, TRAIN_FLAGS are more options of demo.training.train.
set -euo pipefail
cd "$(dirname "$0")/../.."

slices=${1:-12}
training=${TRAINING:-demo/.training}
python=${PYTHON:-python3}
workers=$(($(nproc) > 2 ? $(nproc) - 2 : 0))
mkdir -p "$training"

for ((slice = 1; slice <= slices; slice++)); do
    status=0
    "$python" -m demo.training.train --size large --slice-minutes 8 --workers "$workers" \
        --checkpoint "$training/large" --log "$training/large.jsonl" \
        --out "$training/large_model" ${TRAIN_FLAGS:-} || status=$?
    if [[ -n ${OUT:-} ]]; then
        cp "$training"/large_model/model* "$training/large.jsonl" "$OUT/"
        tar -czf "$OUT/large_model.tgz" -C "$training/large_model" --exclude 'model*' .
    fi
    case $status in
        0) echo "trained"; exit 0 ;;
        3) ;;
        *) exit "$status" ;;
    esac
done
echo "not trained yet: call it again"
