"""Measuring on tiny random models: full prefill is at no distance from itself, every way to
recompute everything is full prefill, and what is recorded is recorded once."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.quality.__main__ import main
from benchmarks.quality.configurations import Configuration, RandomRows, behind, real
from benchmarks.quality.measure import Measurer, measure_all
from benchmarks.quality.qcfuse import QCFuse, critical_layers
from benchmarks.quality.records import Record, Records
from kvstitch_tune.case import Case, Recipe, greedy
from kvstitch_tune.prompts import Prompt
from service.settings import demo_model
from service.worker.api import A3, FullReuse, Pie, QuestionScout, Vanilla
from service.worker.methods.api import DenseMethod
from tests.benchmarks.cases import a_prompt, decode, measured
from tests.references.prefill import index_mask
from tests.service.worker.tiny import D1, D2, D3, S, Tiny

FULL = Configuration("full prefill", Vanilla(), prefix_mode="none")
EVERYTHING: dict[str, DenseMethod | Recipe] = {
    "a3": A3(1.0),
    "question_scout": QuestionScout(1.0),
    "random": RandomRows(1.0),
    "qcfuse": QCFuse(1.0, (5, 6, 7)),
}


def test_full_prefill_is_at_no_distance_from_itself(model: Tiny) -> None:
    [record] = measured(model, FULL)
    assert record.kl_first < 1e-9
    assert record.agree_first == record.agree_next == 1
    assert 0 < record.next_count <= 32
    assert record.kl_next is not None and record.kl_next < 1e-9
    assert record.flops == 1
    assert record.rows == 26
    assert record.bytes == 0


@pytest.mark.parametrize("name", EVERYTHING)
def test_recomputing_everything_is_full_prefill(model: Tiny, name: str) -> None:
    [record] = measured(model, Configuration(name, EVERYTHING[name]))
    # The first document, behind S, is exact already: question_scout leaves it alone.
    spared = len(a_prompt().documents[0]) if name == "question_scout" else 0
    assert record.rows == 26 - spared
    assert record.kl_first < 1e-6
    assert record.kl_next is not None and record.kl_next < 1e-6


def test_reuse_has_a_distance_and_codecs_add_to_it(model: Tiny) -> None:
    full_reuse, pie, coarse = measured(
        model,
        Configuration("full_reuse", FullReuse(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none", codec="int2"),
    )
    assert 0 < pie.kl_first < full_reuse.kl_first
    assert pie.kl_first != coarse.kl_first
    assert pie.rows == 0
    assert 0 < coarse.bytes < pie.bytes
    assert pie.flops < 0.5


def test_the_free_answer_is_what_greedy_decoding_gives(model: Tiny) -> None:
    """Answers that leave full prefill's way are decoded from their own cache."""
    prompt, decoder = a_prompt(3), model.decoder
    with torch.inference_mode():
        run = model.stitch(Pie(), prompt.system, prompt.documents, prompt.question, room=34)
        run.sequence.set_length(prompt.tokens)
        own = greedy(decoder, run.sequence, prompt.tokens, run.logits).argmax(-1).tolist()
    [pie] = measured(model, Configuration("pie", Pie(), prefix_mode="none"), prompt=prompt)
    assert pie.text == decode([t for t in own if t not in decoder.end_ids])
    assert pie.agree_first + (pie.agree_next or 0) < 2  # it did leave the way
    [unanswered] = measured(model, FULL, prompt=replace(prompt, answers=()))
    assert unanswered.text is None


def test_every_configuration_runs_on_odd_prompts_and_twice_alike(model: Tiny) -> None:
    """No document, one token each, all empty."""
    configurations = real([5, 6])[::4]

    def facts(sizes: Sequence[int]) -> list[dict[str, object]]:
        timed = {"seconds": 0, "full_seconds": 0}
        made = measured(model, *configurations, prompt=a_prompt(1, sizes))
        return [{**asdict(r), **timed} for r in made]

    for sizes in ((), (0, 0), (1, 1, 30)):
        first = facts(sizes)
        assert all(math.isfinite(r["kl_first"]) for r in first)  # type: ignore[arg-type]
        assert first == facts(sizes)


def test_configurations_are_told_apart() -> None:
    for configurations in (real([5, 6]), behind(["primer-g3/32"], [5, 6])):
        assert len({c.name for c in configurations}) == len(configurations)
        assert len({c.key for c in configurations}) == len(configurations)


def test_a_key_knows_the_code_of_the_method(tmp_path: Path) -> None:
    """The same name and parameters in a file that was edited: measured again."""

    def key(file: str, more: str) -> str:
        path = tmp_path / file
        path.write_text(
            "from service.worker.methods.api import DenseMethod\n"
            f"class Method(DenseMethod):\n    pass\n{more}"
        )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Configuration("mine", module.Method()).key

    plain = key("one_method.py", "")
    assert plain == key("other_method.py", '    """Says more."""  # and more\n')
    assert plain != key("third_method.py", "    more = 1\n")


class Counting(Measurer):
    """Counts what it is asked for."""

    def __init__(self, model: Tiny, longest: int) -> None:
        super().__init__(model.decoder, decode, longest=longest)
        self.asked: list[tuple[str, str]] = []
        self.stop_after: int | None = None

    def measure(self, prompt: Prompt, configurations: Sequence[Configuration]) -> list[Record]:
        if self.stop_after is not None and len({p for p, _ in self.asked}) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += [(prompt.key, c.key) for c in configurations]
        return super().measure(prompt, configurations)


def test_resuming_does_not_redo(model: Tiny, tmp_path: Path) -> None:
    prompts = [a_prompt(seed) for seed in range(3)]
    two = [FULL, Configuration("pie", Pie())]
    path = tmp_path / "samples.jsonl"
    first = Counting(model, 60)
    first.stop_after = 2
    assert measure_all(first, prompts, two, Records(path)) == 4
    # A process killed while it wrote leaves half a line.
    path.write_text(path.read_text() + '{"prompt": "cut')
    second, again = Counting(model, 60), Records(path)
    again.load()
    assert measure_all(second, prompts, two, again) == 2
    assert second.asked == [(prompts[2].key, c.key) for c in two]
    three = [*two, Configuration("a3", A3(0.3))]
    third, more = Counting(model, 60), Records(path)
    more.load()
    assert measure_all(third, prompts, three, more) == 3
    assert {key for _, key in third.asked} == {three[2].key}


def test_the_command_says_what_its_records_are_and_goes_on(tmp_path: Path) -> None:
    prompts = Path(__file__).parent / "demo_tasks.jsonl"
    (tmp_path / "two.jsonl").write_text("\n".join(prompts.read_text().splitlines()[:2]))
    command = ["--model", str(demo_model()), "--prompts", str(tmp_path / "two.jsonl")]
    command += ["--out", str(tmp_path), "--only"]
    assert main([*command, "pie none", "pie system int8"]) == 0
    [path] = tmp_path.glob("samples-*.jsonl")
    known = Records(path).about()
    assert [each["name"] for each in known.values()] == ["pie none", "pie system int8"]
    assert all(each["environment"]["commit"] for each in known.values())
    text = path.read_text()
    made = [json.loads(line) for line in text.splitlines()]
    assert [record["configuration"] for record in made] == [*known, *known]
    assert all(record["text"] and record["full_text"] for record in made)
    assert main([*command, "pie none"]) == 0
    assert path.read_text() == text
    assert main([*command, "no such"]) == 1
    (tmp_path / "two.jsonl").write_text('{"system": "", "documents": []}')
    assert main([*command, "pie none"]) == 2


def test_qcfuse_by_hand(model: Tiny) -> None:
    """Its digest, what its question sees, and its rows, by loops over the slow decoder."""
    reference, decoder = model.reference, model.decoder
    instruction, ratio, share = [5, 6, 7], 0.3, 0.4
    prompt = model.prompt()
    documents = [range(prompt.starts[m], prompt.starts[m + 1]) for m in (1, 2, 3)]
    seen = [set(range(len(S))) | set(prompt.question_indices) for _ in range(decoder.layers)]
    for number, ids in enumerate((D1, D2, D3)):
        alone = model.prompt(documents=(ids,), question=instruction)
        trace = reference.pie(alone)
        for layer in range(decoder.layers):
            weights = trace.attention[layer][:, alone.question_indices].amax((0, 1)).tolist()
            inside = weights[len(S) : len(S) + len(ids)]
            best = sorted(range(len(ids)), key=lambda t: (-inside[t], t))
            wanted = math.ceil(share * len(ids))
            seen[layer] |= {documents[number][t] for t in best[:wanted]}
    # Layer by layer: stitched() has one mask for all layers, so every layer is a pass of its own.
    x = reference.w["model.embed_tokens.weight"][torch.tensor(prompt.ids)]
    scores = torch.zeros(len(prompt.ids))
    rows, placed = prompt.question_indices, reference.placed(prompt)
    for layer in range(max(critical_layers(decoder.layers)) + 1):
        q, k, v = reference.project(layer, x)
        q, fresh = reference.rotate(q, range(len(x))), reference.rotate(k, range(len(x)))
        k, v_all = placed[layer][0].clone(), placed[layer][1].clone()
        k[rows], v_all[rows] = fresh[rows], v[rows]
        causal = index_mask(rows, len(x))
        if layer in critical_layers(decoder.layers):
            scores += reference.attention(q, k, causal)[:, rows].amax((0, 1))
        allowed = torch.tensor([t in seen[layer] for t in range(len(x))])
        mixed = reference.mix(reference.attention(q, k, causal & allowed), v_all)
        x = reference.block_tail(layer, x, mixed)
    candidates = [t for of in documents for t in of]
    expected = sorted(sorted(candidates, key=lambda t: (-float(scores[t]), t))[: int(0.3 * 26)])
    run = model.stitch(Pie())
    with torch.inference_mode():
        stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
        case = Case(decoder, run.layout, stored, run.sequence, torch.zeros(len(prompt.ids)))  # type: ignore[arg-type]
        result = QCFuse(ratio, instruction, share).run(case)
    chosen = [t for t in result.rows.tolist() if t in candidates]
    assert chosen == expected
