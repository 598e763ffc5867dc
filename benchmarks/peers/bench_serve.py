"""vLLM's own load tool, `vllm bench serve`, against vLLM, llama.cpp and kvstitch: plain chats.

    python -m benchmarks.peers.bench_serve --model FOLDER [--prompts 16] [--into docs/peers.md]

Starts the servers and asks them the same generated prompts, which hold no documents, through
/v1/chat/completions, one server after the other. Writes bench_serve.json with everything that the
tool reports, and a page.

The tool takes the first chunk of a stream for the first token. It need not hold text: the first
text is in the second chunk of every server. So TTFT and TPOT are computed here from the tool's
times of the chunks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.markdown import into
from benchmarks.common.provenance import provenance
from benchmarks.peers.prompts import Encoder
from benchmarks.peers.servers.peer import Conditions, Peer
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.servers.vllm import PYTHON
from benchmarks.peers.starting import started
from benchmarks.peers.table import quartiles, table
from loadtest.local_service import first_model
from tuning.environment import describe

NAME = "bench_serve"
LLAMA = "llama.cpp"
KVSTITCH = "kvstitch question_scout"
# What `vllm bench serve` runs; the command itself asks for a package named vllm, and the wheel for
# CPUs has another name.
TOOL = (
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "parser = FlexibleArgumentParser()\n"
    "add_cli_args(parser)\n"
    "main(parser.parse_args())\n"
)
DATASETS: Mapping[str, Sequence[str]] = {
    "random": ("--random-input-len", "512", "--random-output-len"),
    "prefix_repetition": (
        *("--prefix-repetition-prefix-len", "384", "--prefix-repetition-suffix-len", "128"),
        *("--prefix-repetition-num-prefixes", "4", "--prefix-repetition-output-len"),
    ),
}
"""The tool's options for 512 tokens; the length of the answer follows."""
TITLES = {
    "random": "512 random tokens",
    "prefix_repetition": "384 tokens that 4 groups share, 128 others",
}
LIMIT_S = 600.0


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.bench_serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="a Hugging Face model folder")
    add("--prompts", type=int, default=16, help="of every run")
    add("--concurrency", type=int, nargs="+", default=[1, 8])
    add("--datasets", nargs="+", choices=tuple(DATASETS), default=list(DATASETS))
    add("--max-tokens", type=int, default=32, help="of every answer")
    add("--threads", type=int, default=2, help="of every server")
    add("--cache-mib", type=int, default=1024, help="for KV, of every server")
    add("--seed", type=int, default=1)
    add("--out", type=Path, default=Path("benchmarks/results/peers"))
    add("--into", type=Path, help="a page with a place for the table")
    args = parser.parse_args(given)
    if not os.environ.get(PYTHON):
        parser.error(f"{PYTHON} is not set: the tool comes with vLLM")
    with tempfile.TemporaryDirectory(prefix="kvstitch-peers-") as folder:
        result = run(args, Path(folder))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{NAME}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (args.out / f"{NAME}.md").write_text(page(result), encoding="utf-8")
    print(rows(result))
    if args.into is not None:
        into(args.into, "bench-serve", rows(result))
    return 0 if result["runs"] and not any(run["report"]["failed"] for run in result["runs"]) else 1


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Starts the servers, runs the tool for every dataset, concurrency and server."""
    conditions = Conditions(
        args.model.resolve(),
        folder,
        args.threads,
        cache_mib=args.cache_mib,
        begins=Encoder(args.model).answer_prefix,
        whole_answers=True,
        slots=max(args.concurrency),
    )
    result: dict[str, Any] = {
        "what": "vllm bench serve against vLLM, llama.cpp and kvstitch, plain chats",
        "model": args.model.name,
        **{name: getattr(args, name) for name in ("prompts", "max_tokens", "threads", "cache_mib")},
        "seed": args.seed,
        "environment": describe(),
        "runs": [],
    }
    with started(conditions, [VLLM, LLAMA, KVSTITCH], say) as (peers, absent):
        result["servers"] = {peer.name: peer.about().to_json() for peer in peers}
        result["left_out"] = absent
        turn = 0
        for dataset in args.datasets:
            for concurrency in args.concurrency:
                turned = turn % len(peers)
                # Prompts of a seed of their own: no server has seen them.
                seed = args.seed * 1000 + turn
                turn += 1
                for peer in [*peers[turned:], *peers[:turned]]:
                    say(f"{peer.name}: {dataset}, {concurrency} at a time")
                    report = measured(args, peer, dataset, concurrency, seed, folder)
                    key = {"server": peer.name, "dataset": dataset, "concurrency": concurrency}
                    result["runs"].append({**key, "seed": seed, "report": report})
                    peer.rest()
    return result


def measured(
    args: argparse.Namespace,
    peer: Peer,
    dataset: str,
    concurrency: int,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Runs the tool once; returns its report.

    Raises:
        RuntimeError: the tool failed; the message has the end of what it printed.
    """
    file = folder / "report.json"
    file.unlink(missing_ok=True)
    command = [
        *(os.environ[PYTHON], "-c", TOOL, "--backend", "openai-chat"),
        *("--base-url", peer.url, "--endpoint", "/v1/chat/completions"),
        *("--model", first_model(peer.url), "--tokenizer", str(args.model.resolve())),
        *("--dataset-name", dataset, *DATASETS[dataset], str(args.max_tokens)),
        *("--num-prompts", str(args.prompts), "--max-concurrency", str(concurrency)),
        *("--seed", str(seed), "--temperature", "0", "--disable-tqdm"),
        *("--save-result", "--save-detailed"),
        *("--result-dir", str(folder), "--result-filename", file.name),
    ]
    if peer.name == KVSTITCH:
        command += ["--extra-body", json.dumps({"kvstitch": {"top_k": 0}})]
    else:
        command.append("--ignore-eos")
    environment = os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode or not file.is_file():
        raise RuntimeError(f"vllm bench serve failed: {(done.stdout + done.stderr)[-2000:]}")
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report | {"tokenizer_id": args.model.name}  # not where it lies on this machine


def first_text(report: Mapping[str, Any]) -> list[float]:
    """Seconds to the second chunk of every answer: its first text."""
    pairs = zip(report["ttfts"], report["itls"], strict=True)
    return [first + gaps[0] for first, gaps in pairs if gaps]


def per_token(report: Mapping[str, Any]) -> list[float]:
    """Seconds per token after the first text, of every answer with more than one token."""
    pairs = zip(report["itls"], report["output_lens"], strict=True)
    return [sum(gaps[1:]) / (tokens - 1) for gaps, tokens in pairs if gaps and tokens > 1]


def rows(result: Mapping[str, Any]) -> str:
    """The table of all runs."""
    header = ["prompts", "at a time", "server", "TTFT, ms", "TPOT, ms", "tokens/s", "tool's TTFT"]
    out = []
    for run in sorted(result["runs"], key=lambda r: (r["dataset"] != "random", r["concurrency"])):
        report = run["report"]
        out.append([
            *(TITLES[run["dataset"]], str(run["concurrency"]), run["server"]),
            quartiles(first_text(report), 1000.0, "{:.0f}"),
            quartiles(per_token(report), 1000.0, "{:.0f}"),
            f"{report['output_throughput']:.1f}",
            f"{report['median_ttft_ms']:.0f}",
        ])  # fmt: skip
    return table(header, out) + (
        "\nMedians, in brackets the quartiles. TTFT is to the first chunk with text; the tool's own"
        " is to the first chunk.\n"
    )


def page(result: Mapping[str, Any]) -> str:
    """The whole Markdown page."""
    about = [[n, a["version"], a["settings"]] for n, a in result["servers"].items()]
    lengths = sorted({n for run in result["runs"] for n in run["report"]["input_lens"]})
    counted = f" Prompts of {lengths[0]} to {lengths[-1]} tokens." if lengths else ""
    return (
        "# `vllm bench serve` against vLLM, llama.cpp and kvstitch\n\n"
        f"{result['model']}, {result['threads']} threads and {result['cache_mib']} MiB for KV for "
        f"each server, {result['prompts']} prompts a run, answers of {result['max_tokens']} tokens,"
        f" seed {result['seed']}.{counted}\n\n"
        + table(["server", "version", "settings"], about)
        + "\n"
        + rows(result)
        + "".join(f"\n{name} was left out: {why}\n" for name, why in result["left_out"].items())
        + provenance(result)
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
