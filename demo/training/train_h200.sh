#!/usr/bin/env bash
# Trains the large demo model on one GPU, in slices that each end within ten minutes.
#
#   bash demo/training/train_h200.sh          until it is trained: about 25 minutes, three slices
#   bash demo/training/train_h200.sh 1        one slice; call it again and it goes on
#
# A slice resumes from demo/.training/large, and leaves the model as trained so far beside it in
# large_model and, where OUT names a folder, what is worth keeping there: weights in
# files below 16 MiB, all else of the model in one archive, and the log. PYTHON, TRAINING (the
# folder) and TRAIN_FLAGS change what their names say.
set -euo pipefail
cd "$(dirname "$0")/.."

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
