"""Ingestion relative to a plain prefill of as many tokens in long prompts.

    python -m benchmarks.costs.ingestion [--model smollm2] [--prefix-mode system primer]

Three things take turns, round by round, on the same texts (passages of Natural Questions):

    plain prefill   prompts of 2,048 tokens, by the same kernels in one process, without a store
    precompute      chunks of 128 tokens, computed by an engine in that process, stored on SSD
    over HTTP       POST /admin/precompute to the real service, which splits, embeds, indexes,
                    precomputes and stores the passages; until the job has succeeded

In prefix mode primer a job is done when every chunk is stored behind its prefix chunks. The service
then stores all chunks behind the system prompt alone, too, which is reported as `rest`. Every round
has other texts. Processor seconds are those of all threads, over HTTP of both processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.engine import open_engine
from benchmarks.quality.tasks import natural_questions
from benchmarks.speed.outcome import Figure, at_least
from demo.client import Client
from demo.corpus_files import CorpusDocument
from demo.model import MODEL
from demo.process import free_port, service
from kvstitch.kvstore import SsdTier, TieredStore
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.messages.requests import ChunkTokens, Precompute
from kvstitch.service.models import prepare_model
from kvstitch.service.settings import Settings, load
from kvstitch.service.worker.api import DecoderModel, Engine, load_model, model_fingerprint
from kvstitch_tune.prompts import prefill_ids
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/speed")
PLAIN_TOKENS = 2048
"""Of a plain prefill."""
CHUNK_TOKENS = 128
GROUP, COMPANIONS = 32, 3
"""Chunks that share a primer, and chunks in it, as in the service."""
TARGETS = {"precompute": 0.9, "http": 0.75}
WHAT = {
    "precompute": f"precompute of chunks of {CHUNK_TOKENS} tokens to SSD",
    "http": "ingestion over HTTP, with splitting, embedding and index",
}

Clock = Callable[[], float]
"""Processor seconds until now."""


def main(given: list[str] | None = None) -> int:
    args = _parser().parse_args(given)
    torch.set_num_threads(args.threads)
    os.environ["KVSTITCH_THREADS"] = str(args.threads)
    folder = prepare_model(load(model=args.model))
    decoder = load_model(str(folder), dtype="bfloat16", device="cpu")
    parts = passages(args.documents, args.rounds)
    for mode in args.prefix_mode:
        taken = list(measure(decoder, folder, mode, parts))
        record = {
            "prefix_mode": mode,
            "model": {"folder": folder.name, "fingerprint": model_fingerprint(str(folder))},
            "environment": describe(),
            "threads": args.threads,
            "documents": args.documents,
            "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "figures": [figure.to_json() for figure in figures(taken)],
            "rounds": taken,
        }
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / f"ingestion_{mode}_{args.threads}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(path)
        for each in figures(taken):
            samples = ", ".join(f"{sample:.2f}" for sample in each.samples)
            print(f"  {each.what}: {each.median:.2f} ({samples}), {each.target} {each.verdict}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.ingestion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=MODEL, help="a name, or a folder")
    parser.add_argument("--prefix-mode", nargs="+", default=["system", "primer"], metavar="MODE")
    parser.add_argument("--documents", type=int, default=120, help="of a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser


def passages(count: int, rounds: int) -> list[list[CorpusDocument]]:
    """Distinct passages, `count` for every round."""
    texts = dict.fromkeys(asked.passage for asked in natural_questions.load("test"))
    found = [CorpusDocument(str(n), p.title, p.text) for n, p in enumerate(texts)]
    if len(found) < count * rounds:
        raise SystemExit(f"there are {len(found)} passages: use fewer rounds or documents")
    return [found[n * count : (n + 1) * count] for n in range(rounds)]


def measure(
    decoder: DecoderModel, folder: Path, mode: str, parts: list[list[CorpusDocument]]
) -> Iterator[dict[str, Any]]:
    """Times of every round; which of the three comes first changes from round to round."""
    prompts = PromptBuilder(folder, Settings.model_validate({}))
    os.environ["KVSTITCH_PREFIX_MODE"] = mode
    with (
        tempfile.TemporaryDirectory() as scratch,
        engine_on_ssd(decoder, Path(scratch)) as engine,
        running_service(folder, Path(scratch)) as (client, service_clock),
        torch.inference_mode(),
    ):
        for turn, part in enumerate(parts):
            ids = [token for each in part for token in prompts.document_ids(each.title, each.text)]

            def http(part: list[CorpusDocument] = part) -> dict[str, Any]:
                done = timed(lambda: ingest(client, part), service_clock)
                return {"http": done, "rest": timed(client.wait_complete, service_clock)}

            def plain(ids: list[int] = ids) -> dict[str, Any]:
                return {"plain": timed(lambda: plain_prefill(decoder, ids))}

            def alone(ids: list[int] = ids) -> dict[str, Any]:
                chunks = cut(ids, mode)
                return {"precompute": timed(lambda: precompute(engine, prompts, chunks, mode))}

            ways: list[Callable[[], dict[str, Any]]] = [plain, alone, http]
            taken: dict[str, Any] = {"tokens": len(ids)}
            for way in (*ways[turn % 3 :], *ways[: turn % 3]):
                taken |= way()
            print(json.dumps(taken), file=sys.stderr)
            yield taken


def figures(taken: list[dict[str, Any]]) -> list[Figure]:
    """Tokens/s of the two ways over those of the plain prefill."""
    found = []
    for way, target in TARGETS.items():
        by_clock = {
            clock: [each["plain"][clock] / each[way][clock] for each in taken]
            for clock in ("wall", "cpu")
        }
        what = f"{WHAT[way]}: tokens/s over plain prefill"
        found.append(Figure(what, by_clock["wall"], at_least(target), cpu=by_clock["cpu"]))
    return found


@contextmanager
def engine_on_ssd(decoder: DecoderModel, folder: Path) -> Iterator[Engine]:
    with (
        TieredStore([SsdTier(folder / "chunks", 1 << 36)]) as store,
        open_engine(decoder, store, pool_tokens=PLAIN_TOKENS) as engine,
    ):
        yield engine


@contextmanager
def running_service(model: Path, folder: Path) -> Iterator[tuple[Client, Clock]]:
    """A client of the service, and the clock of its processes."""
    data_dir, port = folder / "data", free_port()
    data_dir.mkdir()
    with (
        service(data_dir, port, folder / "service.log", model) as process,
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        yield client, lambda: processor_seconds(process.pid)


def plain_prefill(decoder: DecoderModel, ids: list[int]) -> None:
    for start in range(0, len(ids), PLAIN_TOKENS):
        prefill_ids(decoder, ids[start : start + PLAIN_TOKENS])


def cut(ids: list[int], mode: str) -> list[ChunkTokens]:
    """Chunks of equal length; each group stands behind the first chunks of the next."""
    cuts = [ids[start : start + CHUNK_TOKENS] for start in range(0, len(ids), CHUNK_TOKENS)]
    if mode != "primer":
        return [ChunkTokens(number, each) for number, each in enumerate(cuts)]
    chunks = []
    for number, each in enumerate(cuts):
        following = (number // GROUP + 1) * GROUP
        start = following if following + COMPANIONS <= len(cuts) else 0
        chunks.append(ChunkTokens(number, each, cuts[start : start + COMPANIONS]))
    return chunks


def precompute(
    engine: Engine, prompts: PromptBuilder, chunks: list[ChunkTokens], mode: str
) -> None:
    queue = engine.precompute_queue
    message = Precompute("", prompts.system, chunks, mode)
    for address in engine.admission.addresses(message)[1:]:
        if address is not None:
            queue.add(address, id="chunk")
    while queue.pending:
        if engine.idle:  # as the server does; polling would slow down the writing
            time.sleep(0.001)
        engine.step()
    if queue.counts["failed"]:
        raise RuntimeError("chunks could not be written")


def ingest(client: Client, documents: list[CorpusDocument]) -> None:
    for _ in client.precompute(documents):
        pass


def timed(work: Callable[[], object], clock: Clock = time.process_time) -> dict[str, float]:
    """Seconds of wall-clock and of processor time."""
    wall, cpu = time.perf_counter(), clock()
    work()
    return {"wall": time.perf_counter() - wall, "cpu": clock() - cpu}


def processor_seconds(pid: int) -> float:
    """Of a process and its descendants until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return own + sum(processor_seconds(int(child)) for child in children)


if __name__ == "__main__":
    sys.exit(main())
