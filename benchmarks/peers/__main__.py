"""kvstitch beside other servers, over HTTP, in one run.

    python -m benchmarks.peers --model FOLDER [--minutes 8]

Starts every server that is installed, asks all of them the same prompts in rotating order, and
writes peers.json and peers.md to --out after every round. KVSTITCH_VLLM_PYTHON names a Python that
has vLLM, KVSTITCH_LLAMA_SERVER the program llama-server; what is missing is left out, and the
result says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.processes import Ended
from benchmarks.peers.prompts import Encoder
from benchmarks.peers.results import Result
from benchmarks.peers.servers.peer import Conditions, Peer
from benchmarks.peers.starting import started
from benchmarks.peers.table import page, ratios
from benchmarks.peers.workloads import USUAL, WORKLOADS, Rounds, sources
from benchmarks.quality.tasks import natural_questions
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/peers")
REUSE_ALL, CHANGING_ALL = "reuse", "changing"
"""Choose the prompts of all shares of known documents, and a conversation with others each turn."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--minutes", type=float, default=8.0, help="no round begins later")
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    parser.add_argument(
        "--workloads", nargs="+", choices=(*USUAL, REUSE_ALL, CHANGING_ALL), default=list(USUAL)
    )
    parser.add_argument("--documents", type=int, default=8, help="of a prompt, if they fit; to 64")
    parser.add_argument("--corpus", type=int, default=64, help="documents that return")
    parser.add_argument("--max-tokens", type=int, default=8, help="of an answer")
    parser.add_argument("--context", type=int, default=4096, help="longest prompt and answer")
    parser.add_argument("--threads", type=int, default=2, help="of every server")
    parser.add_argument("--cache-mib", type=int, default=1024, help="for KV, of every server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="servers, by the beginning of their names")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--again", action="store_true", help="pages of what --out holds; no run")
    args = parser.parse_args(given)
    if args.model is None and not args.again:
        parser.error("--model is missing: a run needs a model folder")
    result = Result.read(args.out / "peers.json") if args.again else run(args)
    if args.again:
        write(result, args.out)
    print(ratios(result))
    return 1 if result.failures() or result.ended or not result.samples else 0


def run(args: argparse.Namespace) -> Result:
    """Starts the servers, measures, and stops them."""
    with tempfile.TemporaryDirectory(prefix="kvstitch-peers-") as folder:
        encoder = Encoder(args.model)
        conditions = Conditions(
            args.model.resolve(),
            Path(folder),
            args.threads,
            args.context,
            args.cache_mib,
            begins=encoder.answer_prefix,
            step_tokens=args.context,
        )
        with started(conditions, args.only, say, changing=CHANGING_ALL in args.workloads) as (
            running,
            absent,
        ):
            return measure(args, encoder, running, absent)


def measure(
    args: argparse.Namespace, encoder: Encoder, running: Sequence[Peer], absent: dict[str, str]
) -> Result:
    """Asks the servers round by round until the time is up."""
    found = sources(natural_questions.load("test"))
    rounds = Rounds(
        found[: args.corpus], found[args.corpus :], args.documents, encoder.ids,
        begins=encoder.answer_prefix,
        workloads=[name for name in WORKLOADS if name.split()[0] in args.workloads],
        room=args.context - args.max_tokens,
    )  # fmt: skip
    sizes = ("threads", "seed", "documents", "corpus", "context", "max_tokens", "cache_mib")
    result = Result(
        {"model": args.model.name, **{name: getattr(args, name) for name in sizes}}
        | {"workloads": list(rounds.workloads), "environment": describe()},
        absent=absent,
    )
    if not running:
        return result
    for peer in running:
        result.about[peer.name] = peer.about()
        began = time.monotonic()
        if peer.store([source.document for source in rounds.corpus]):
            peer.rest()
            result.stored_s[peer.name] = time.monotonic() - began
    comparison = Comparison(running, args.max_tokens)
    for prompt in rounds.warm_up():
        for sample in comparison.asked(prompt, 0):
            say(f"warm-up {sample.contestant}: {sample.error or sample.ttft_s}")
    ends_at = time.monotonic() + 60 * args.minutes
    turn = count()
    for number, prompts in enumerate(rounds.made(args.seed)):
        if number >= args.rounds or time.monotonic() > ends_at:
            break
        result.note_load()
        try:
            samples = [s for prompt in prompts for s in comparison.asked(prompt, next(turn))]
        except Ended as error:
            say(str(error))
            result.ended = str(error)
            write(result, args.out)
            break
        result.prompts += prompts
        result.samples += samples
        result.memory_mib = {peer.name: peer.memory_mib() for peer in running}
        write(result, args.out)
        say(f"round {number + 1}, {(ends_at - time.monotonic()) / 60:.1f} minutes left")
    return result


def write(result: Result, out: Path) -> None:
    """Writes the file of figures and the page."""
    result.write(out / "peers.json")
    (out / "peers.md").write_text(page(result), encoding="utf-8")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
