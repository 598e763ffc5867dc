"""TTFT of vLLM's full prefill at the lengths of `benchmarks.gpu`, where the image has vLLM.

    python -m benchmarks.gpu.beside_vllm [--quick] [--out FOLDER]

The same shape with random weights, without prefix caching, one request at a time. It is a process
of its own, because vLLM takes most of the GPU's memory. It has not been run yet: no machine with a
GPU and vLLM was at hand.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig

from benchmarks.gpu.shapes import LLAMA_3_8B, RESULTS, TINY, config_of
from tuning.environment import describe

LENGTHS, REPETITIONS = (1024, 2048, 4096, 8192, 16384), 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.beside_vllm")
    parser.add_argument("--quick", action="store_true", help="a tiny shape")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: left out", flush=True)
        return 0
    vllm = importlib.import_module("vllm")
    sizes = TINY if given.quick else LLAMA_3_8B
    config: LlamaConfig = config_of(sizes)
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        served = vllm.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
            enable_prefix_caching=False, max_model_len=max(LENGTHS) + 16,
        )  # fmt: skip
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        seconds: dict[int, list[float]] = {}
        for length in LENGTHS:
            for attempt in range(REPETITIONS + 1):
                ids = torch.randint(sizes["vocab_size"], (length,)).tolist()
                started = time.perf_counter()
                served.generate({"prompt_token_ids": ids}, sampling, use_tqdm=False)
                if attempt:
                    seconds.setdefault(length, []).append(time.perf_counter() - started)
            print(f"vLLM, {length}: {1e3 * statistics.median(seconds[length]):.1f} ms", flush=True)
    record = {"vllm": vllm.__version__, "environment": describe(), "seconds": seconds}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu_vllm.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
