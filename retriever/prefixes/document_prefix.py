"""The earlier chunks of its own document that a chunk is precomputed behind.

    p0 p1 p2 p3 p4 p5 p6 …       p1 behind p0, p2 behind p0 p1, …
          └── p2 p3 p4 p5        when that is long enough, the next ones begin further on

A document is read once: each chunk is computed behind the stored KV of those before it, until they
are as many tokens as a prefix may have. Then a prefix begins anew in the middle of it, so that each
chunk but the document's first ones has about half as much before it, or more.
"""

from __future__ import annotations

from collections.abc import Sequence


def prefix_starts(tokens: Sequence[int], max_tokens: int) -> list[int]:
    """Return for every chunk the ordinal of the first of the chunks that it stands behind.

    The others follow up to the chunk itself; its own ordinal: it stands behind none.

    Args:
        tokens: Of the document's chunks, in their order.
        max_tokens: Most tokens of a prefix.

    Returns:
        One more than there are chunks: the last is that of a chunk that would follow.
    """
    starts, length = [0], 0
    for place, more in enumerate(tokens):
        start = starts[-1]
        length += more
        if length > max_tokens:
            while length > max(max_tokens // 2, more):
                length -= tokens[start]
                start += 1
        if length > max_tokens:  # this chunk alone is too long
            start, length = place + 1, 0
        starts.append(start)
    return starts
