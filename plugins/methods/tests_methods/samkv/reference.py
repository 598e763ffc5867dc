"""SamKV as a whole (specification.md §1.7, Q1–Q8; paper, section 3) on the slow decoder of
`prefill.py`.

S is exact, always kept, never recomputed and outside all ratios. A segment that has no stored KV
would be precomputed first, so here every segment has some. Token indices are the prompt's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tests.references.prefill import Prompt, Reference, Trace
from tests_methods.samkv.reference_pass import (
    UPDATES,
    Cache,
    Pass,
    Sets,
    hidden_sets,
    sparse_pass,
    theta,
)
from tests_methods.samkv.reference_selection import (
    Block,
    block_scores,
    chosen_blocks,
    layer_proportion,
    normalised,
    personalised,
    pooled_blocks,
    wanted_blocks,
)
from tests_methods.samkv.reference_sketch import (
    Sketch,
    document_sketches,
    fixed_blocks,
    outlier_blocks,
    tokens_of,
)

Sketches = Sequence[Sequence[Sketch]]  # [non-empty document][layer]


@dataclass
class Selection:
    """Q2–Q4. Lists per document are over the non-empty ones."""

    blocks: list[list[Block]]  # [layer] -> (document, middle block)
    layer_proportions: list[list[float]]  # P_i^(n), [document][layer]
    proportions: list[float]  # P_i
    wanted: list[int]  # k_i
    m: int


def default_stable_layers(layers: int) -> list[int]:
    """N*: the last ⌈L / 8⌉, counted from 0."""
    return list(range(layers - math.ceil(layers / 8), layers))


def select(
    generic: Sequence[Tensor],
    sketches: Sketches,
    stable_layers: Sequence[int],
    *,
    bias: bool = True,
    normalise: str = "norm",
    limit: int | None = None,
) -> Selection:
    """From Q_que per layer `[heads, d]`: every document's P, one M for all layers, and the blocks
    of each layer."""
    layers, documents = range(len(generic)), range(len(sketches))
    local = [[s[layer].local_query for s in sketches] for layer in layers]
    queries = [
        [personalised(generic[layer], local[layer] if bias else [], i) for layer in layers]
        for i in documents
    ]
    per_layer = [
        [layer_proportion(queries[i][layer], sketches[i][layer]) for layer in layers]
        for i in documents
    ]
    proportions = [math.fsum(p[n] for n in stable_layers) / len(stable_layers) for p in per_layer]
    wanted = wanted_blocks(proportions, [len(s[0].middle) for s in sketches])
    m = pooled_blocks(wanted, limit)
    blocks = []
    for layer in layers:
        scores = []
        for i in documents:
            query = queries[i][layer]
            scores.append(normalised(block_scores(query, sketches[i][layer]), query, normalise))
        blocks.append(chosen_blocks(scores, wanted, m))
    return Selection(blocks, per_layer, proportions, wanted, m)


def outlier_tokens(
    sketches: Sequence[Sketch],
    blocks: Sequence[Block],
    pool: str = "document",
    deviations: float = 3.0,
) -> list[tuple[int, int]]:
    """(document, its token) recomputed at one layer beside init and local: representatives of the
    kept middle blocks whose α is a low outlier (P6, Q5)."""
    odd = outlier_blocks(sketches, pool, deviations)
    out = []
    for i, j in blocks:
        token = sketches[i].representatives[j]
        if j in odd[i] and token is not None:
            out.append((i, token))
    return out


@dataclass
class SamKV:
    """One prompt. Lists per document have one entry per document of the prompt; an empty one has
    P = 0 and no blocks."""

    trace: Trace  # n, last logits [1, vocabulary], and per layer K, V of kept[l] + question
    kept: Sets  # G_n, with S, without the question
    recomputed: Sets  # R_n
    hidden: Sets  # U_n
    blocks: list[list[Block]]  # [layer] -> (document, middle block)
    layer_proportions: list[list[float]]  # P_i^(n), [document][layer]
    proportions: list[float]  # P_i
    wanted: list[int]  # k_i, also where the selection is off
    m: int
    thetas: list[dict[int, tuple[float, float]]]  # [layer][token of R_n] -> θ of K and of V

    @property
    def logits(self) -> Tensor:
        """Of the question's last token, `[vocabulary]`."""
        return self.trace.logits[-1]


def samkv(
    reference: Reference,
    system: Sequence[int],
    documents: Sequence[Sequence[int]],
    question: Sequence[int],
    *,
    prefix: Sequence[int] = (),
    block: int = 64,
    stable_layers: Sequence[int] | None = None,
    update: str = "overwrite",
    post: bool = False,
    selection: bool = True,
    bias: bool = True,
    recompute: bool = True,
    normalise: str = "norm",
    pauta_pool: str = "document",
    limit: int | None = None,
    min_later: int = 16,
    deviations: float = 3.0,
    sketches: Sketches | None = None,
    ends: Sequence[Sequence[int]] | None = None,
) -> SamKV:
    """`prefix`: what a document sees at precompute. `stable_layers`: N*, counted from 0, default
    the last ⌈L / 8⌉. `sketches`: default the documents' own. `ends`: tokens of each non-empty
    document recomputed at every layer, default its init and local. Decode by
    `reference.decode(result.trace, tokens)`."""
    stored = [reference.precompute(system)]
    stored += [reference.precompute(ids, prefix) for ids in documents]
    prompt = Prompt(list(system), [list(d) for d in documents], list(question), [*stored])
    ids, layers, cached = prompt.ids, range(reference.layers), reference.placed(prompt)
    question_rows, always = prompt.question_indices, list(range(len(system)))
    numbers = [i for i, document in enumerate(documents) if document]
    starts = [prompt.starts[i + 1] for i in numbers]
    if sketches is None:
        sketches = [
            document_sketches(reference, documents[i], prefix, block, min_later) for i in numbers
        ]
    fixed = []
    for start, s in zip(starts, sketches, strict=True):
        ranges = s[0].ranges
        fixed += [start + t for t in tokens_of(fixed_blocks(len(ranges)), ranges)]
    anew = fixed
    if ends is not None:
        anew = [start + t for start, own in zip(starts, ends, strict=True) for t in own]

    first = question_pass(reference, ids, question_rows, cached, [[*always, *fixed]] * len(layers))
    generic = [first.q_pre[layer][question_rows].mean(0) for layer in layers]
    stable = default_stable_layers(len(layers)) if stable_layers is None else stable_layers
    choice = select(generic, sketches, stable, bias=bias, normalise=normalise, limit=limit)
    if not selection:
        choice.m, choice.blocks = 0, [[] for _ in layers]

    kept, recomputed = [], []
    for layer in layers:
        here = [s[layer] for s in sketches]
        middle = [starts[i] + t for i, j in choice.blocks[layer] for t in here[i].ranges[j]]
        odd = outlier_tokens(here, choice.blocks[layer], pauta_pool, deviations)
        kept.append(sorted([*always, *fixed, *middle]))
        recomputed.append(sorted([*anew, *(starts[i] + t for i, t in odd)]) if recompute else [])

    hidden = hidden_sets(recomputed)
    seen = [sorted({*g, *u}) for g, u in zip(kept, hidden, strict=True)]
    renewed = sparse_pass(
        reference, ids, cached, hidden, recomputed, seen, update=UPDATES[update], post=post
    )
    answer = question_pass(reference, ids, question_rows, renewed.cache, kept)

    trace = Trace(len(ids), logits=reference.head(answer.output[question_rows[-1:]]))
    for g, (k, v) in zip(kept, answer.cache, strict=True):
        trace.k.append(k[[*g, *question_rows]])
        trace.v.append(v[[*g, *question_rows]])
    place = {number: i for i, number in enumerate(numbers)}
    nothing = [0.0] * len(layers)
    every = range(len(documents))
    return SamKV(
        trace=trace,
        kept=kept,
        recomputed=recomputed,
        hidden=hidden,
        blocks=[[(numbers[i], j) for i, j in chosen] for chosen in choice.blocks],
        layer_proportions=[
            choice.layer_proportions[place[i]] if i in place else nothing for i in every
        ],
        proportions=[choice.proportions[place[i]] if i in place else 0.0 for i in every],
        wanted=[choice.wanted[place[i]] if i in place else 0 for i in every],
        m=choice.m,
        thetas=thetas(renewed.fresh, cached, recomputed),
    )


def question_pass(
    reference: Reference, ids: Sequence[int], question_rows: list[int], cached: Cache, kept: Sets
) -> Pass:
    """Q's rows through all layers, seeing `kept[l]` and themselves (Q1, Q8)."""
    rows = [question_rows] * reference.layers
    keys = [sorted([*g, *question_rows]) for g in kept]
    return sparse_pass(reference, ids, cached, rows, rows, keys, last=question_rows)


def thetas(fresh: Cache, stored: Cache, tokens: Sets) -> list[dict[int, tuple[float, float]]]:
    """θ of K and of V of every recomputed token, whatever the update."""
    return [
        {t: (theta(k[t], old_k[t]), theta(v[t], old_v[t])) for t in here}
        for (k, v), (old_k, old_v), here in zip(fresh, stored, tokens, strict=True)
    ]
