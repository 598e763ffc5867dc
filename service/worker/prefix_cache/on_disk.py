"""The prefix cache on disk: KV of prompts, the record of each, and threads that read and write.

They have a folder and a bound of their own, so that prompts never take the place of documents; the
least recently used goes first. All are known at any time, so a deletion finds every prompt that
holds the deleted text. For that reason no other machine shares them.

The KV is a chunk like any other, in the codec raw, except that its keys are stored after RoPE: a
prompt that continues it has all of its tokens at the same positions, to the bit.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from encryption.keyring import Keyring
from kvstore import EncodedChunk, TieredStore, TierStats, encode_chunk
from kvstore.tiers.base import Tier
from service.worker.kv.pool import SequenceKV
from service.worker.loading.timers import Timers
from service.worker.model.addressing import Address, Addressing
from service.worker.prefix_cache.prompts import (
    CachedPrompt,
    NewPrompt,
    PromptIndex,
    PromptRecord,
    holds,
    replaces,
)

log = logging.getLogger("kvstitch.prompts")

NAME, VERSION = "prompt", 1
"""Of the extra tensors that hold a record."""
THREADS = 2  # so that a write does not delay reads
MAX_READING_BYTES = 1 << 30
"""Of prompts that are read and not yet copied to the pool; one may be larger."""


@dataclass(frozen=True, eq=False)
class PromptOnDisk(PromptRecord):
    """A prompt whose KV is on disk."""

    address: Address = field(kw_only=True)


class KVFromDisk:
    """KV that was read from disk for one sequence; it is gone when it has been copied."""

    def __init__(self, chunk: EncodedChunk) -> None:
        self._chunk: EncodedChunk | None = chunk

    @property
    def reserved_tokens(self) -> int:
        return 0 if self._chunk is None else self._chunk.spec.tokens

    def copy_to(self, kv: SequenceKV, tokens: int) -> None:
        """Copy the first `tokens` tokens to a sequence."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None, "it is copied once"
        for layer in range(chunk.spec.layers):
            for target, source in zip(
                kv.prompt_layer(layer, tokens), chunk.layer(layer), strict=True
            ):
                target.copy_(source[:tokens].transpose(0, 1))


class DiskPrefixCache:
    """The prefix cache of one model on disk. Use as a context manager, or start and close it.

    Args:
        tier: where they are; nothing else may be stored in it.
        addressing: makes their keys, which hold the model and the tenant's secret.
        on_ready: called on a thread of the store after every read and write, to wake the engine.
        keys: seal and open them; None: they are in the clear.

    Attributes:
        counts: prompts by what happened to them: stored; failed to be stored; lost, for they were
            damaged or gone when they were to be read.
    """

    def __init__(
        self,
        tier: Tier,
        addressing: Addressing,
        *,
        on_ready: Callable[[], None] = lambda: None,
        keys: Keyring | None = None,
    ) -> None:
        self._store = TieredStore([tier], keys=keys)
        self._keys = keys
        self._addressing = addressing
        self.on_ready = on_ready
        self._lock = threading.RLock()  # a finalizer may need it where it is held already
        self._timers = Timers()
        self._reading_bytes = 0
        self._index: PromptIndex[PromptOnDisk] = PromptIndex()
        self._undeleted: list[PromptOnDisk] = []  # of a deletion that failed
        self._writes: dict[Future[bool], PromptRecord] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.counts = Counter({"stored": 0, "failed": 0, "lost": 0})

    def start(self) -> None:
        """Open the tier, and read the record of every prompt in it.

        Raises:
            TierError: the tier cannot work at all.
        """
        self._store.start()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kv-prompts")
        self.learn()

    def learn(self) -> None:
        """Read the record of every prompt in the tier that is not known, as after new keys."""
        with self._lock:
            known = {prompt.address.key for prompt in self._index}
        unknown = []
        for key in sorted(self._store.keys() - known):
            prompt = self._read_record(key)
            if prompt is not None:
                with self._lock:
                    self._index.add(prompt)
            elif not self._waits_for_keys(key):
                unknown.append(key)
        if unknown:
            log.info(
                "%d cached prompts are of another model, incomplete, or sealed under a key that "
                "was deleted: deleted", len(unknown),
            )  # fmt: skip
            self._store.delete(unknown)

    def close(self) -> None:
        """Finish the writes that have started, then close the tier."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        self._timers.close()
        self._store.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look_up(self, wanted: NewPrompt) -> tuple[PromptOnDisk, int] | None:
        """Return the prompt that `wanted` can take most tokens of, and their number."""
        with self._lock:
            return self._index.find(wanted)

    def reserve(self, prompt: PromptOnDisk) -> bool:
        """Take memory to read a prompt until it has been copied; return whether there is any."""
        nbytes = self.bytes_of(prompt)
        with self._lock:
            if self._reading_bytes and self._reading_bytes + nbytes > MAX_READING_BYTES:
                return False
            self._reading_bytes += nbytes
        return True

    def read(self, prompt: PromptOnDisk) -> CachedPrompt | None:
        """Read a prompt on the calling thread, after `reserve`; None if it is damaged or gone."""
        address = prompt.address
        chunk = self._store.read(address.key, address.spec, address.owner).chunk
        extra = self._store.read_extra(address.key, NAME, VERSION)
        if chunk is None or extra is None:
            self._release(self.bytes_of(prompt))
            self._lose(prompt)
            return None
        weakref.finalize(chunk, self._release, self.bytes_of(prompt))
        logits = extra.tensors["logits"].clone()
        return CachedPrompt(**prompt.facts, logits=logits, kv=KVFromDisk(chunk), place="prompts")

    def write(
        self, prompt: PromptRecord, logits: Tensor, k: Sequence[Tensor], v: Sequence[Tensor]
    ) -> Future[bool]:
        """Store a prompt in the background.

        Args:
            logits: of the first answer token `[vocabulary]`.
            k: keys after RoPE, for each layer `[tokens, kv_heads, head_dim]` in host memory.
            v: values, like `k`.

        Returns:
            Whether it was stored.
        """
        written = self.run(lambda: self._write(prompt, logits, k, v))
        with self._lock:
            self._writes[written] = prompt
        written.add_done_callback(self._finished)
        return written

    def forget(self, texts: Collection[Sequence[int]]) -> dict[str, int]:
        """Delete every prompt that holds one of these texts, also those that are being written.

        Return how many were deleted, by the tier's name; nothing if it could not be reached.
        """
        with self._lock:
            writes = list(self._writes)
        for write in writes:
            write.exception()  # waits: a deletion must come after a write that has started
        with self._lock:
            held = self._index.holding(texts)
            self._index.forget(texts)
            self._undeleted += held
            due = [p for p in self._undeleted if any(holds(p.tokens, ids) for ids in texts)]
        if not due:
            return {self.name: 0}
        deleted = self._store.delete([prompt.address.key for prompt in due])
        if deleted:
            with self._lock:
                self._undeleted = [p for p in self._undeleted if p not in due]
        return deleted

    def run(self, work: Callable[[], Any]) -> Future[Any]:
        """Run work on a thread of the store."""
        assert self._threads is not None, "start the store first"
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self.on_ready())
        return future

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after so many seconds; it must be short."""
        self._timers.after(seconds, call)

    def bytes_of(self, prompt: PromptRecord) -> int:
        """Return the bytes of a prompt's KV."""
        return self._addressing.kv_bytes_per_token * len(prompt.tokens)

    @property
    def writing(self) -> int:
        """Number of prompts that are being written."""
        with self._lock:
            return len(self._writes)

    def stats(self) -> TierStats:
        """Return what the tier has counted."""
        return self._store.stats().tiers[0]

    @property
    def name(self) -> str:
        """Of the tier."""
        return self._store.tier_names[0]

    def _address(self, prompt: PromptRecord) -> Address:
        kind = f"{prompt.prompt_tokens} {prompt.question_start} {prompt.exact} {prompt.method}"
        kind += f" {prompt.lora}" if prompt.lora else ""
        return self._addressing.prompt(prompt.tokens.tolist(), kind, prompt.tenant)

    def _stored(self, prompt: PromptRecord) -> PromptOnDisk:
        return PromptOnDisk(**prompt.facts, address=self._address(prompt))

    def _waits_for_keys(self, key: str) -> bool:
        """Return whether a prompt is sealed, and no gateway has sent keys yet."""
        if self._keys is None or self._keys.active:
            return False
        return any(kind == "locked" for _, kind in self._store.read_blocks(key, {0: []}).problems)

    def _read_record(self, key: str) -> PromptOnDisk | None:
        """Return what is known of a prompt on disk; None if it is incomplete or another model's."""
        extra = self._store.read_extra(key, NAME, VERSION)
        if extra is None:
            return None
        prompt = self._stored(_record(extra.tensors))
        return prompt if prompt.address.key == key else None

    def _write(
        self, prompt: PromptRecord, logits: Tensor, k: Sequence[Tensor], v: Sequence[Tensor]
    ) -> bool:
        stored = self._stored(prompt)
        key = stored.address.key
        owner = stored.address.owner
        self._store.put(key, encode_chunk(stored.address.spec, k, v), owner)
        if not self._store.put_extra(key, NAME, VERSION, _tensors(prompt, logits), owner):
            return False
        with self._lock:
            known = list(self._index)
            self._index.add(stored)
        held = self._store.contains([prompt.address.key for prompt in known])
        replaced = [p for p in known if replaces(stored, p) and p.address.key != key]
        gone = [p for p in known if p.address.key not in held or p.address.key == key]
        with self._lock:
            for each in (*replaced, *gone):
                self._index.remove(each)
        self._store.delete([p.address.key for p in replaced])
        return True

    def _finished(self, write: Future[bool]) -> None:
        with self._lock:
            self._writes.pop(write, None)
        error = None if write.cancelled() else write.exception()
        if error is not None:
            log.error("a prompt could not be stored", exc_info=error)
        stored = not write.cancelled() and error is None and write.result()
        self.counts["stored" if stored else "failed"] += 1

    def _release(self, nbytes: int) -> None:
        with self._lock:
            self._reading_bytes -= nbytes

    def _lose(self, prompt: PromptOnDisk) -> None:
        self.counts["lost"] += 1
        with self._lock:
            self._index.remove(prompt)
        self._store.delete([prompt.address.key])


def _tensors(prompt: PromptRecord, logits: Tensor) -> dict[str, Tensor]:
    """Return the extra tensors of a prompt."""
    facts = prompt.facts
    tokens = facts.pop("tokens")
    text = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
    return {"facts": text, "tokens": tokens, "logits": logits}


def _record(tensors: Mapping[str, Tensor]) -> PromptRecord:
    """Return the record that extra tensors hold."""
    facts = json.loads(bytes(tensors["facts"].tolist()))
    return PromptRecord(tokens=tensors["tokens"].clone(), **facts)
