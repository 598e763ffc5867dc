"""KV that is encrypted on SSD and in Redis beside KV that is not: TTFT, and reads of chunks alone.

    python -m benchmarks.costs.encryption --model FOLDER [--tokens 2048] [--rounds 15]

One process has two engines for each tier, one of whose stores has keys. Both have precomputed the
same eight documents of random ids, and are asked the same question in turns, from a tier and never
from memory; the page cache holds none of the files. A round is one measurement of each, in an order
that changes. Only the ratios within a round mean anything on a machine that does other work, too;
the CPU time of the process is told beside them, because others have no part in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cryptography
import torch

from benchmarks.common.engine import open_engine, precompute_now
from benchmarks.common.redis import redis_url
from encryption.keyring import DataKey, Keyring
from kvstore import RedisTier, SsdTier, TieredStore
from kvstore.tiers.base import Tier
from service.messages.replies import Done, Failed, TokenItem
from service.messages.reports import Report
from service.messages.requests import ChunkTokens, Generate, Method, Sampling
from service.worker.api import DecoderModel, Engine, load_model
from tuning.environment import describe

OUT = Path("benchmarks/results/encryption.json")
METHODS = {
    "pie": Method("pie"),
    "question_scout": Method("question_scout", {"ratio": 0.15}),
}
DOCUMENTS, SYSTEM_TOKENS, QUESTION_TOKENS = 8, 40, 24
GIB = 1 << 30
SEED = 7
SIDES = ("clear", "sealed")


class Asked:
    """A question about documents of random ids."""

    def __init__(self, decoder: DecoderModel, tokens: int, method: Method) -> None:
        self._random = torch.Generator().manual_seed(SEED + tokens)
        self._vocabulary = decoder.vocabulary
        self._method = method
        self.system = self._ids(SYSTEM_TOKENS)
        self.documents = [ChunkTokens(n, self._ids(tokens // DOCUMENTS)) for n in range(DOCUMENTS)]
        self.question = self._ids(QUESTION_TOKENS)

    def request(self, name: str, max_tokens: int) -> Generate:
        return Generate(
            name,
            self.system,
            self.documents,
            self.question,
            self._method,
            sampling=Sampling(max_tokens=max_tokens, ignore_end=True),
        )

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


def forget_files(folder: Path) -> None:
    """Takes the files out of the page cache."""
    for path in folder.rglob("*.*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


class Side:
    """An engine, its store, and the documents that are in it."""

    def __init__(self, engine: Engine, store: TieredStore, talk: Asked) -> None:
        self.engine, self._store = engine, store
        found = engine.admission.addresses(talk.system, talk.documents, "none", "")
        self.addresses = [address for address in found if address is not None]

    def precompute(self) -> None:
        with torch.inference_mode():
            for address in self.addresses:
                precompute_now(self.engine, address)
        assert self._store.flush(60.0)

    def read(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds and bytes of reading all chunks, one after the other."""
        started, cpu, nbytes = time.perf_counter(), time.process_time(), 0
        for address in self.addresses:
            outcome = self._store.read(address.key, address.spec)
            assert outcome.chunk is not None and not outcome.problems
            nbytes += outcome.nbytes
        return time.perf_counter() - started, time.process_time() - cpu, nbytes


def measure(
    decoder: DecoderModel, tier: str, method: str, tokens: int, rounds: int
) -> dict[str, Any]:
    """One row of the result."""
    talk = Asked(decoder, tokens, METHODS[method])
    ring = Keyring([DataKey(os.urandom(16), "", os.urandom(32))])
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[str, Side] = {}
        for name in SIDES:
            kept: Tier
            if tier == "redis":
                kept = RedisTier(opened.enter_context(redis_url()), timeout_s=10.0, deadline_s=60.0)
            else:
                kept = SsdTier(folder / name, 8 * GIB)
            keys = ring if name == "sealed" else None
            store = opened.enter_context(TieredStore([kept], keys=keys))
            # Without the planner: a slow moment would make it compute what is to be read.
            engine = opened.enter_context(
                open_engine(decoder, store, pool_tokens=2 * tokens + 1024, planner=False)
            )
            sides[name] = Side(engine, store, talk)
            sides[name].precompute()
        ttft: dict[str, list[float]] = {name: [] for name in SIDES}
        read: dict[str, list[float]] = {name: [] for name in SIDES}
        ttft_cpu: dict[str, list[float]] = {name: [] for name in SIDES}
        read_cpu: dict[str, list[float]] = {name: [] for name in SIDES}
        nbytes = 0
        for number in range(-1, rounds):  # the first warms up
            for name in SIDES if number % 2 else SIDES[::-1]:
                forget_files(folder)
                cpu = time.process_time()
                seconds, _, report = ask(sides[name].engine, talk.request(f"{name} {number}", 1))
                cpu = time.process_time() - cpu
                assert {each.tier for each in report.documents} == {tier}, report.documents
                forget_files(folder)
                read_s, read_cpu_s, nbytes = sides[name].read()
                if number >= 0:
                    ttft[name].append(seconds)
                    read[name].append(read_s)
                    ttft_cpu[name].append(cpu)
                    read_cpu[name].append(read_cpu_s)

    def ratios(of: dict[str, list[float]]) -> list[float]:
        return [a / b for a, b in zip(of["sealed"], of["clear"], strict=True)]

    row = {
        "tier": tier,
        "method": method,
        "tokens": tokens,
        "bytes": nbytes,
        "ttft_ratio": statistics.median(ratios(ttft)),
        "ttft_ratio_quartiles": statistics.quantiles(ratios(ttft), n=4)[::2],
        "ttft_cpu_ratio": statistics.median(ratios(ttft_cpu)),
        "read_ratio": statistics.median(ratios(read)),
        "read_cpu_ms": {
            name: 1000 * statistics.median(of_side) for name, of_side in read_cpu.items()
        },
        "ttft_s": ttft,
        "read_s": read,
        "ttft_cpu_s": ttft_cpu,
        "read_cpu_s": read_cpu,
    }
    print({k: v for k, v in row.items() if not k.endswith("_s")}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.encryption",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--tiers", nargs="+", choices=("ssd", "redis"), default=["ssd", "redis"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    decoder = load_model(str(given.model))
    rows = [
        measure(decoder, tier, method, given.tokens, given.rounds)
        for tier in given.tiers
        for method in given.methods
    ]
    result = {
        "environment": describe(),
        "cryptography": cryptography.__version__,
        "model": given.model.name,
        "dtype": str(decoder.dtype).removeprefix("torch."),
        "load": os.getloadavg(),
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
