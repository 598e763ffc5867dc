"""The next turn of a conversation after a restart, with its earlier turns on disk and without.

    python -m benchmarks.costs.stored_prompts --model FOLDER [--tokens 1024 4096] [--rounds 3]

A conversation over eight documents of random ids has two turns; then the engine is closed. Its
third turn is asked of a new engine that has the same folders, in turns: with stored prompts and
without. The documents' chunks are on the SSD tier either way, and the page cache holds none of the
files. Only the ratio of two neighbouring measurements means anything on a machine that does other
work at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.engine import open_engine, precompute_now
from kvstore import SsdTier, TieredStore
from service.messages.replies import Done, Failed, TokenItem
from service.messages.reports import Report
from service.messages.requests import ChunkTokens, Generate, Method, Sampling
from service.worker.api import DecoderModel, Engine, load_model
from tuning.environment import describe

OUT = Path("benchmarks/results/stored_prompts.json")
METHODS = {
    "vanilla": Method("vanilla"),
    "question_scout": Method("question_scout", {"ratio": 0.15}),
}
DOCUMENTS, SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 8, 40, 24, 32
GIB = 1 << 30
SEED = 7


class Conversation:
    """Its documents, and what has been said so far."""

    def __init__(self, decoder: DecoderModel, tokens: int, method: Method) -> None:
        self._random = torch.Generator().manual_seed(SEED + tokens)
        self._vocabulary = decoder.vocabulary
        self._method = method
        self.system = self._ids(SYSTEM_TOKENS)
        self.documents = [ChunkTokens(n, self._ids(tokens // DOCUMENTS)) for n in range(DOCUMENTS)]
        self.said = self._ids(TURN_TOKENS)

    def request(self, name: str, max_tokens: int) -> Generate:
        return Generate(
            name,
            self.system,
            self.documents,
            self.said,
            self._method,
            sampling=Sampling(max_tokens=max_tokens, ignore_end=True),
        )

    def go_on(self, answer: list[int]) -> None:
        """The answer, and the next question."""
        self.said = [*self.said, *answer, *self._ids(TURN_TOKENS)]

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = torch.randint(
            0, self._vocabulary, (count,), generator=self._random
        ).tolist()
        return ids


def ask(engine: Engine, request: Generate) -> tuple[float, list[int], Report]:
    """Seconds to the first token, the answer, and the report."""
    tokens: list[int] = []
    first = 0.0
    started = time.monotonic()
    engine.submit(request)
    while True:
        for event in engine.step():
            match event:
                case TokenItem():
                    first = first or time.monotonic() - started
                    tokens.append(event.token)
                case Done():
                    return first, tokens, event.report
                case Failed():
                    raise RuntimeError(event.message)
        if engine.idle:
            time.sleep(2e-4)


@contextmanager
def engine(decoder: DecoderModel, folder: Path, tokens: int, *, stores: bool) -> Iterator[Engine]:
    """A new engine on the folders of the one before."""
    with (
        TieredStore([SsdTier(folder / "kv", 8 * GIB)]) as store,
        open_engine(
            decoder,
            store,
            pool_tokens=3 * (tokens + 1024),
            prefix_cache=True,
            prompts_dir=str(folder / "prompts") if stores else "",
        ) as opened,
    ):
        yield opened


def first_turns(decoder: DecoderModel, folder: Path, talk: Conversation, tokens: int) -> float:
    """Two turns; returns the seconds until the prompt was on disk, after the answer."""
    with engine(decoder, folder, tokens, stores=True) as opened:
        with torch.inference_mode():
            for address in opened.admission.addresses(talk.system, talk.documents, "none", ""):
                if address is not None:
                    precompute_now(opened, address)
        for turn in range(2):
            _, answer, _ = ask(opened, talk.request(f"turn {turn}", ANSWER_TOKENS))
            talk.go_on(answer)
        started = time.monotonic()
        assert opened.disk_prefix_cache is not None
        while not opened.idle or opened.disk_prefix_cache.writing:
            opened.step()
        assert opened.disk_prefix_cache.counts["stored"] == 1, opened.disk_prefix_cache.counts
        return time.monotonic() - started


def forget_files(folder: Path) -> None:
    """Takes the files out of the page cache."""
    for path in folder.rglob("*.*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def measure(decoder: DecoderModel, name: str, tokens: int, rounds: int) -> dict[str, Any]:
    """One row of the result."""
    talk = Conversation(decoder, tokens, METHODS[name])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    reports: dict[bool, Report] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stored_s = first_turns(decoder, folder, talk, tokens)
        nbytes = sum(f.stat().st_size for f in (folder / "prompts").rglob("*.*") if f.is_file())
        for number in range(rounds):
            for stores in (True, False):
                forget_files(folder)
                with engine(decoder, folder, tokens, stores=stores) as opened:
                    first_s, _, report = ask(opened, talk.request(f"round {number}", 1))
                seconds[stores].append(first_s)
                reports[stores] = report
                print(f"{name} {tokens} {'stored' if stores else 'fresh'}: {first_s:.3f} s "
                      f"from {report.reused_from or '-'}", flush=True)  # fmt: skip
    ratios = [a / b for a, b in zip(seconds[True], seconds[False], strict=True)]
    return {
        "method": name,
        "tokens": reports[True].prompt_tokens,
        "reused_from": reports[True].reused_from,
        "reused_tokens": reports[True].reused_tokens,
        "stored_bytes": nbytes,
        "stored_s": stored_s,
        "ttft_s": {"stored": seconds[True], "without": seconds[False]},
        "ratio": statistics.median(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.stored_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    decoder = load_model(str(given.model))
    rows = [
        measure(decoder, name, tokens, given.rounds)
        for tokens in given.tokens
        for name in given.methods
    ]
    result = {
        "environment": describe(),
        "model": given.model.name,
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "seed": SEED,
        "load": os.getloadavg(),
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
