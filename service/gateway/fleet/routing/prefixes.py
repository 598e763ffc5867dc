"""Which worker has lately computed a prompt that begins alike.

Workers keep answered prompts while they have room, and tell nobody; so this only remembers what was
sent where, in blocks of 64 tokens, as routers by prefix do.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from service.messages.requests import Generate

BLOCK_TOKENS = 64
MAX_BLOCKS = 50_000


def prefix_blocks(request: Generate) -> list[bytes]:
    """A name for every beginning of the prompt that is a multiple of 64 tokens long."""
    tokens: list[int] = [*request.system]
    for document in request.documents:
        tokens += document.ids
    tokens += request.question
    name = blake2b(repr((request.tenant, request.lora)).encode(), digest_size=16)
    names: list[bytes] = []
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        name.update(array("q", tokens[end - BLOCK_TOKENS : end]).tobytes())
        names.append(name.digest())
    return names


class PrefixMap:
    """Beginnings of prompts, and the worker that each was sent to last."""

    def __init__(self) -> None:
        self._workers: OrderedDict[bytes, int] = OrderedDict()

    def note(self, blocks: Sequence[bytes], worker: int) -> None:
        """A prompt is sent to a worker."""
        for block in blocks:
            self._workers[block] = worker
            self._workers.move_to_end(block)
        while len(self._workers) > MAX_BLOCKS:
            self._workers.popitem(last=False)

    def longest(self, blocks: Sequence[bytes]) -> dict[int, int]:
        """By worker, tokens of the longest beginning that it has computed."""
        found: dict[int, int] = {}
        for number, block in enumerate(blocks, start=1):
            worker = self._workers.get(block)
            if worker is None:
                break
            found[worker] = number * BLOCK_TOKENS
        return found

    def forget(self, worker: int) -> None:
        """A worker is gone, and all that it kept."""
        for block in [block for block, there in self._workers.items() if there == worker]:
            del self._workers[block]
