"""Answers samples with the real engine, all configurations of a sample together.

There is one engine per codec, because an engine has one, and each has a memory tier that chunks are
precomputed into. An answer ends at the end token, a stop text or the sample's limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.common.engine import open_engine
from benchmarks.quality.configuration import METHODS_FOLDER, Configuration
from benchmarks.quality.sample import Sample
from benchmarks.quality.scores import score
from kvstore import MemoryTier, TieredStore
from service.errors import WorkerFault
from service.messages.replies import Done, Failed, Reply, TokenItem
from service.messages.reports import Report
from service.messages.requests import ChunkTokens, Generate, Sampling
from service.worker.api import DecoderModel, Engine, add_folder, fusion_methods
from service.worker.methods.api import ModelFacts, Reads

MAX_RUNNING = 64
# Short, because there may be nothing left to wait for.
_WAIT_S = 0.002
_ATTEMPTS = 5

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Result:
    """The answer of one configuration to one sample.

    Attributes:
        prompt: key of the sample.
        configuration: key of the configuration.
        text: the answer, cut at the sample's stop texts.
        score: of the answer, 0 to 1.
        tokens: number of answer tokens.
        flops: operations of the prompt, relative to a full prefill.
        rows: share of the document tokens that were recomputed.
        kept: share of the document KV entries that were still held after the first token.
        coverage: share of the document tokens that at least one head of one layer kept.
    """

    prompt: str
    configuration: str
    text: str
    score: float
    tokens: int
    flops: float
    rows: float
    kept: float
    coverage: float


@dataclass(frozen=True)
class Timing:
    """Seconds from the request to the first token, with nothing else running."""

    prompt: str
    configuration: str
    seconds: float


@dataclass
class _Asked:
    sample: Sample
    configuration: Configuration
    tokens: list[int]
    report: Report | None = None
    text: str = ""

    @property
    def cold(self) -> bool:
        """Whether a document was computed although the method reads documents from the store."""
        assert self.report is not None
        method = fusion_methods()[self.configuration.fusion.name]
        return method.reads is not Reads.NOTHING and any(
            d.tier == "cold" and d.tokens for d in self.report.documents
        )


class Bench:
    """The engines that answer; use as `with Bench.open(…) as bench`."""

    def __init__(
        self,
        decoder: DecoderModel,
        facts: ModelFacts,
        fingerprint: str,
        decode: Decode,
        *,
        pool_tokens: int,
        memory_bytes: int,
        stack: ExitStack,
    ) -> None:
        self._decoder, self._facts, self._fingerprint = decoder, facts, fingerprint
        self._decode = decode
        self._pool_tokens, self._memory_bytes = pool_tokens, memory_bytes
        self._stack = stack
        self._engines: dict[str, Engine] = {}
        self._asked = 0
        self._woken = threading.Event()

    @classmethod
    @contextmanager
    def open(
        cls,
        decoder: DecoderModel,
        facts: ModelFacts,
        fingerprint: str,
        decode: Decode,
        *,
        pool_tokens: int,
        memory_bytes: int,
    ) -> Iterator[Bench]:
        """Starts the engines on demand and closes them at the end.

        Args:
            decoder: the model.
            facts: its sizes and calibration.
            fingerprint: of the model.
            decode: turns token ids into text.
            pool_tokens: size of each engine's KV pool.
            memory_bytes: size of each engine's store; the least recently used chunks are evicted.
        """
        add_folder(METHODS_FOLDER)
        with ExitStack() as stack:
            yield cls(
                decoder,
                facts,
                fingerprint,
                decode,
                pool_tokens=pool_tokens,
                memory_bytes=memory_bytes,
                stack=stack,
            )

    def measure(
        self, samples: Sequence[Sample], configurations: Sequence[Sequence[Configuration]]
    ) -> list[Result]:
        """Answers each sample under its configurations, all at once."""
        asked: dict[Engine, dict[str, _Asked]] = {}
        for sample, wanted in zip(samples, configurations, strict=True):
            self.precompute(sample, wanted)
        for sample, wanted in zip(samples, configurations, strict=True):
            for configuration in wanted:
                engine = self._engine(configuration.codec)
                name = self._submit(engine, sample, configuration, sample.text.answer_tokens)
                asked.setdefault(engine, {})[name] = _Asked(sample, configuration, [])
        for engine, running in asked.items():
            self._answer_warm(engine, running)
        return [self._result(each) for running in asked.values() for each in running.values()]

    def time(self, sample: Sample, configurations: Sequence[Configuration]) -> list[Timing]:
        """Times the first token of each configuration, one after the other."""
        self.precompute(sample, configurations)
        timings = []
        for configuration in configurations:
            engine = self._engine(configuration.codec)
            for _ in range(_ATTEMPTS):
                started = time.perf_counter()
                name = self._submit(engine, sample, configuration, 1)
                running = {name: _Asked(sample, configuration, [])}
                while not running[name].tokens and running[name].report is None:
                    self._step(engine, running)
                seconds = time.perf_counter() - started
                self._answer(engine, running)
                if not running[name].cold:
                    break
            timings.append(Timing(sample.key, configuration.key, seconds))
        return timings

    def precompute(self, sample: Sample, configurations: Sequence[Configuration]) -> None:
        """Stores the chunks that the configurations will read, unless they are stored already.

        No request may be running: events of the engines are dropped meanwhile.
        """
        for codec, mode in dict.fromkeys((c.codec, c.prefix_mode) for c in configurations):
            engine = self._engine(codec)
            for address in engine.admission.addresses(
                sample.system, _chunks(sample, True), mode, ""
            ):
                if address is not None:
                    engine.precompute_queue.add(address)
            while engine.precompute_queue.pending:
                self._turn(engine)

    def _engine(self, codec: str) -> Engine:
        if codec not in self._engines:
            store = self._stack.enter_context(TieredStore([MemoryTier(self._memory_bytes)]))
            self._engines[codec] = self._stack.enter_context(
                open_engine(
                    self._decoder,
                    store,
                    pool_tokens=self._pool_tokens,
                    codec=codec,
                    fingerprint=self._fingerprint,
                    facts=self._facts,
                    planner=False,
                    max_running=MAX_RUNNING,
                    max_waiting=1 << 16,
                    loader_threads=1,
                    on_load=self._woken.set,
                )
            )
        return self._engines[codec]

    def _submit(
        self, engine: Engine, sample: Sample, configuration: Configuration, max_tokens: int
    ) -> str:
        self._asked += 1
        name = str(self._asked)
        engine.submit(
            Generate(
                name,
                sample.system,
                _chunks(sample, configuration.documents),
                sample.question,
                configuration.fusion,
                configuration.evicting(sample.tokens),
                Sampling(max_tokens=max_tokens),
                configuration.prefix_mode,
            )
        )
        return name

    def _answer_warm(self, engine: Engine, running: dict[str, _Asked]) -> None:
        """Answers with every document read from the store, repeating requests where one was not.

        On a busy machine the store can miss its deadline. The engine then computes the document,
        and the method would profit from exact rows that it did not choose.
        """
        for _ in range(_ATTEMPTS):
            self._answer(engine, running)
            cold = [name for name, asked in running.items() if asked.cold]
            if not cold:
                return
            again = [running.pop(name) for name in cold]
            for asked in again:
                self.precompute(asked.sample, [asked.configuration])
            for asked in again:
                sample, configuration = asked.sample, asked.configuration
                name = self._submit(engine, sample, configuration, sample.text.answer_tokens)
                running[name] = _Asked(sample, configuration, [])
        raise WorkerFault(
            f"documents were not in the store when they were read, {_ATTEMPTS} times: give it more "
            "memory, or the machine less else to do"
        )

    def _answer(self, engine: Engine, running: dict[str, _Asked]) -> None:
        """Runs until all of `running` are answered and all writes to the store are done."""
        while any(a.report is None for a in running.values()) or engine.precompute_queue.pending:
            self._step(engine, running)

    def _step(self, engine: Engine, running: dict[str, _Asked]) -> None:
        for event in self._turn(engine):
            if isinstance(event, TokenItem):
                asked = running[event.id]
                asked.tokens.append(event.token)
                asked.text = self._decode(asked.tokens)
                if any(stop in asked.text for stop in asked.sample.text.stop):
                    engine.abort(event.id, "stop")
            elif isinstance(event, Done):
                running[event.id].report = event.report
            elif isinstance(event, Failed):
                name = running[event.id].configuration.name
                raise WorkerFault(f"{name}: {event.message} (field {event.field})")

    def _turn(self, engine: Engine) -> list[Reply]:
        """One step of the engine, then a wait for a load if there is nothing else to do."""
        self._woken.clear()
        events = engine.step()
        if not events and engine.idle:
            self._woken.wait(_WAIT_S)
        return events

    def _result(self, asked: _Asked) -> Result:
        report, text = asked.report, asked.sample.text
        assert report is not None
        answer = asked.text
        for stop in text.stop:
            answer = answer.partition(stop)[0]
        return Result(
            prompt=asked.sample.key,
            configuration=asked.configuration.key,
            text=answer,
            score=score(text.metric, answer, text.references, text.classes),
            tokens=report.prompt_tokens,
            flops=report.flops / report.full_prefill_flops,
            rows=report.recomputed_ratio,
            kept=report.kept_ratio,
            coverage=report.coverage,
        )


def _chunks(sample: Sample, documents: bool) -> list[ChunkTokens]:
    return (
        [ChunkTokens(i, list(ids)) for i, ids in enumerate(sample.documents)] if documents else []
    )
