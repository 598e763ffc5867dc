"""How far stitching is from full prefill on a small gated-DeltaNet hybrid, beside an attention
model of the same size and training (`toy_training`).

    python -m benchmarks.quality.toy_hybrid [--steps 1400] [--prompts 128] [--seed 0] [--out FOLDER]

A text of 14 facts is cut into chunks of 7 tokens, within facts too: two are `cut`, their key in
another chunk than their value, and a chunk that is precomputed alone cannot know whose value it is.

LegoLink computes the first rows of every chunk but the first, and on the hybrid what is stored of
the others is composed behind them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.common.markdown import percent, table, with_interval
from benchmarks.common.provenance import provenance
from benchmarks.quality import toy_training as toy
from benchmarks.quality.configurations import Configuration
from benchmarks.quality.measure import Measurer
from benchmarks.quality.records import Record
from kvstitch.service.worker.api import LegoLink, Pie, QuestionScout, decoder_for
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import describe
from kvstitch_tune.statistics import Bootstrap

OUT = Path("benchmarks/results/real")
CHUNK, FIRST, KINDS = 7, (1, 3), ("whole", "cut")
MODES = ("system", "primer x3")
TITLE = """\
# A trained toy: a hybrid beside a model that only attends

KL: full prefill ‖ method in nats at the answer's first token, the value; same: the answer is full
prefill's; right: it is the value that the text gives; rows: computed for a question, over the
prompt's. Whole: the key stands in the value's chunk; cut: in the one before. In brackets 95 %
bootstrap intervals over prompts. Chunks but the first stand behind the system prompt, and behind
three times three other chunks at once, too (primer x3). LegoLink computes their first rows.
"""


def chunked(ids: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + CHUNK]) for start in range(0, len(ids), CHUNK)]


def drawn_prompts(count: int, seed: int) -> Iterator[Prompt]:
    source = np.random.default_rng([seed, 1])
    primers = [chunked(text)[:3] for text in toy.Facts.drawn(source, 3).tokens.tolist()]
    for _ in range(count):
        drawn = toy.Facts.drawn(source, 1)
        chunks = chunked(drawn.tokens[0].tolist())
        asked = int(source.integers(0, toy.FACTS))
        cut = asked * toy.FACT // CHUNK != (asked * toy.FACT + 1) // CHUNK
        key, value = int(drawn.keys[0, asked]), int(drawn.values[0, asked])
        behind = {"primer x3": [[], *[primers] * (len(chunks) - 1)]}
        question = (toy.ASK, key)
        yield Prompt(KINDS[cut], toy.SYSTEM, tuple(chunks), question, (str(value),), behind)


def configurations(attends: bool) -> list[Configuration]:
    made = [Configuration("pie", Pie(), prefix_mode=mode) for mode in MODES]
    for rows in FIRST:
        link = LegoLink(first=rows, last=0, skip_first_doc=True)
        made += [Configuration("legolink", link, f"{rows} rows", "", mode) for mode in MODES]
    for mode in MODES if attends else ():
        made.append(Configuration("question_scout", QuestionScout(0.15), "r=0.15", "", mode))
    return made


@torch.inference_mode()
def measured(model: Any, prompts: Sequence[Prompt], attends: bool) -> dict[str, list[Record]]:
    decoder, longest = decoder_for(model.eval()), max(prompt.tokens for prompt in prompts)
    measurer = Measurer(decoder, lambda ids: " ".join(map(str, ids[:1])), longest=longest)
    made: dict[str, list[Record]] = {}
    chosen = configurations(attends)
    with mock.patch("kvstitch_tune.case.NEXT", 0):  # an answer is one token
        for prompt in prompts:
            for each, record in zip(chosen, measurer.measure(prompt, chosen), strict=True):
                made.setdefault(each.name, []).append(record)
    return made


def table_of(prompts: Sequence[Prompt], made: dict[str, list[Record]]) -> str:
    bootstrap, lines = Bootstrap(len(prompts)), list[list[str]]()
    kinds = [prompt.task for prompt in prompts]

    def share(texts: Sequence[str | None]) -> str:
        right = [float(t == p.answers[0]) for t, p in zip(texts, prompts, strict=True)]
        return with_interval(bootstrap.mean(right), percent)

    full = [record.full_text for record in next(iter(made.values()))]
    lines.append(["full prefill", "100.0 %", *["0"] * 3, "100.0 %", share(full)])
    for name, records in made.items():
        kl = [record.kl_first for record in records]
        parts = [[v if k in of else None for v, k in zip(kl, kinds, strict=True)]
                 for of in (KINDS, *((kind,) for kind in KINDS))]  # fmt: skip
        same = [float(record.text == record.full_text) for record in records]
        rows = [
            (r.rows + len(p.question)) / r.tokens for r, p in zip(records, prompts, strict=True)
        ]
        lines.append([
            name, percent(sum(rows) / len(rows)),
            *(with_interval(bootstrap.mean(part), "{:.3f}".format) for part in parts),
            with_interval(bootstrap.mean(same), percent), share([r.text for r in records]),
        ])  # fmt: skip
    head = ["", "rows", "KL", *(f"{kind}, {kinds.count(kind)}" for kind in KINDS), "same", "right"]
    return table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1400, help="of each model's training")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    prompts = list(drawn_prompts(args.prompts, args.seed))
    record: dict[str, Any] = {"environment": describe(), "seed": args.seed}
    pages = [TITLE]
    for name, build, begin in (
        ("hybrid", toy.hybrid, toy.hybrid),
        ("attention", toy.attention, partial(toy.attention, narrow=True)),
    ):
        weights = args.out / f"toy_{name}.pt"
        if not weights.exists():  # of an earlier run
            torch.manual_seed(args.seed)
            narrow = begin()
            about = toy.train(narrow, args.seed, args.steps)
            torch.save((about, narrow.state_dict()), weights)
        about, state = torch.load(weights)
        model = build()
        model.load_state_dict(state)
        made = measured(model.requires_grad_(False), prompts, name == "attention")
        record[name] = {**about, "samples": {k: [asdict(r) for r in v] for k, v in made.items()}}
        size = f"{about['weights']:,} weights, {about['steps']:,} steps, {about['seconds']:.0f} s"
        pages.append(f"## {name}: {size}\n\n{table_of(prompts, made)}")
        print(pages[-1], flush=True)
    text = "\n".join(pages) + provenance(record)
    (args.out / "toy_hybrid.md").write_text(text, encoding="utf-8")
    (args.out / "toy_hybrid.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
