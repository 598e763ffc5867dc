"""The fidelity bench on tiny random models: full prefill is at no distance from itself, every way
to recompute everything is full prefill, and what is recorded is recorded once."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fidelity.__main__ import main
from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.configurations import standard
from benchmarks.fidelity.compared.parts import parts
from benchmarks.fidelity.compared.qcfuse import QCFuse, critical_layers
from benchmarks.fidelity.compared.real import behind, real
from benchmarks.fidelity.compared.variants import FewKeys, Oracle, RandomRows, WithFirstTokens
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.report import recorded
from benchmarks.fidelity.report.records import Record, Records
from benchmarks.fidelity.runner import complete, measure_all
from service.worker.api import A3, CacheBlend, LegoLink, Pie, QuestionScout, Vanilla
from service.worker.methods.api import DenseMethod
from tests.benchmarks.cases import a_prompt, decode, measured
from tests.references.prefill import index_mask
from tests.service.worker.tiny import D1, D2, D3, S, Tiny
from tuning.case import Case, Recipe, greedy
from tuning.prompts import Prompt

FULL = Configuration("full prefill", Vanilla(), prefix_mode="none")
SPARING = {"question_scout", "first tokens", "few keys", "oracle"}
EVERYTHING: dict[str, DenseMethod | Recipe] = {
    "a3": A3(1.0),
    "cacheblend": CacheBlend(1.0),
    "legolink": LegoLink(40, 40),
    "question_scout": QuestionScout(1.0),
    "random": RandomRows(1.0),
    "random exact": RandomRows(1.0, exact_layers=2),
    "first tokens": WithFirstTokens(1.0),
    "few keys": FewKeys(1.0),
    "oracle": Oracle(1.0),
    "qcfuse": QCFuse(1.0, (5, 6, 7)),
}


def test_full_prefill_is_at_no_distance_from_itself(model: Tiny) -> None:
    [record] = measured(model, FULL)
    assert record.kl_first < 1e-9
    assert record.agree_first == 1
    assert 0 < record.next_count <= 32
    assert record.agree_next == 1
    assert record.kl_next is not None and record.kl_next < 1e-9
    assert record.map_l2 == [0.0] * len(record.map_l2)
    assert record.k_error == record.v_error == [0.0] * model.decoder.layers
    assert record.flops == 1
    assert record.hit == 1
    assert record.rows == 26
    assert record.bytes == 0


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("prefix_mode", ["none", "system"])
def test_recomputing_everything_is_full_prefill(model: Tiny, name: str, prefix_mode: str) -> None:
    [record] = measured(model, Configuration(name, EVERYTHING[name], prefix_mode=prefix_mode))
    # The first document, behind S, is exact already: question_scout and its kin leave it alone.
    spared = len(a_prompt().documents[0]) if prefix_mode == "system" and name in SPARING else 0
    assert record.rows == 26 - spared
    assert record.kl_first < 1e-6
    assert record.kl_next is not None and record.kl_next < 1e-6
    assert record.agree_first == record.agree_next == 1
    assert max(*record.k_error, *record.v_error, *record.map_l2) < 1e-4


def test_reuse_has_a_distance_and_codecs_add_to_it(model: Tiny) -> None:
    full_reuse, pie, coarse = measured(
        model,
        Configuration("full_reuse", standard(5)[4].method, prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none", codec="int2"),
    )
    assert 0 < pie.kl_first < full_reuse.kl_first
    assert pie.k_error[0] < 1e-6 < coarse.k_error[0]
    assert pie.rows == 0 and pie.hit is None
    assert 0 < coarse.bytes < pie.bytes
    assert pie.flops < 0.5


def test_exact_layers_are_exact_in_the_record(model: Tiny) -> None:
    """docs/specification.md T3, through the bench: layer 0 for all, layer 1 for A3."""
    a3, scout = measured(
        model,
        Configuration("a3", A3(0.2), prefix_mode="none"),
        Configuration("question_scout", QuestionScout(0.2), prefix_mode="none"),
    )
    assert max(a3.k_error[:2]) < 1e-5 < a3.k_error[2]
    assert scout.k_error[0] < 1e-5 < scout.k_error[1]
    assert a3.rows == scout.rows == math.floor(0.2 * a_prompt().tokens)


def test_the_free_answer_is_what_greedy_decoding_gives(model: Tiny) -> None:
    """Answers that leave full prefill's way are decoded from their own cache: with a known answer
    taken from an engine-like run, `right` says so."""
    prompt, decoder = a_prompt(3), model.decoder
    method = Pie()
    with torch.inference_mode():
        run = model.stitch(method, prompt.system, prompt.documents, prompt.question, room=34)
        run.sequence.set_length(prompt.tokens)
        own = greedy(decoder, run.sequence, prompt.tokens, run.logits).argmax(-1).tolist()
    answer = decode([t for t in own if t not in decoder.end_ids])
    wrong, right = (
        measured(model, Configuration("pie", method, prefix_mode="none"), prompt=p)[0]
        for p in (replace(prompt, answers=("nothing",)), replace(prompt, answers=(answer,)))
    )
    assert right.right is True and wrong.right is False
    assert right.agree_first + (right.agree_next or 0) < 2  # it did leave the way
    assert measured(model, FULL, prompt=replace(prompt, answers=()))[0].right is None


def test_records_are_equal_when_run_twice(model: Tiny) -> None:
    configurations = [*standard(5)[::4], *parts(["system"], 0.3)]

    def facts() -> list[dict[str, Any]]:
        timed = {"seconds": 0, "full_seconds": 0}
        return [{**asdict(r), **timed} for r in measured(model, *configurations)]

    assert facts() == facts()


def test_every_configuration_runs_on_odd_prompts(model: Tiny) -> None:
    """No document, one token each, all empty: finite figures, no document row recomputed where
    there is none."""
    configurations = [*standard(5)[::4], *parts(["none", "system"], 0.3)]
    for sizes in ((), (0, 0), (1, 1, 30)):
        for record in measured(model, *configurations, prompt=a_prompt(1, sizes)):
            numbers = [record.kl_first, record.flops, *record.k_error, *record.map_l2]
            assert all(math.isfinite(x) for x in numbers)
            assert record.rows <= sum(sizes)


def test_configurations_are_told_apart() -> None:
    for configurations in (
        standard(12),
        real([5, 6]),
        behind(["primer-g3/32"], [5, 6]),
        parts(["system"], 0.15),
    ):
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

    assert key("one_method.py", "") == key("other_method.py", "")
    said = key("third_method.py", '    """Says more."""  # and more\n')
    assert said == key("other_method.py", ""), "no answer depends on it"
    assert key("fourth_method.py", "    more = 1\n") != key("other_method.py", "")


# -- resuming -------------------------------------------------------------------------------------


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
    records = Records(path)
    assert measure_all(first, prompts, two, records) == 4
    assert complete(prompts, two, records) == prompts[:2]
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
    whole = Records(tmp_path / "at-once.jsonl")
    measure_all(Counting(model, 60), prompts, three, whole)
    for prompt in prompts:
        for c in three:
            one, other = more[prompt.key, c.key], whole[prompt.key, c.key]
            assert one.rows == other.rows
            assert one.kl_first == pytest.approx(other.kl_first, rel=1e-3, abs=1e-9)


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_its_results_and_goes_on(tmp_path: Path) -> None:
    only = ["full prefill*", "pie system", "a3 r=0.15 system", "question_scout r=0.15 system"]
    command = ["--samples", "1", "--tasks", "single", "pronoun", "--out", str(tmp_path)]
    command += ["--only", *only]
    assert main(command) == 0
    record = json.loads((tmp_path / "fidelity.json").read_text())
    assert record["seed"] == 1
    assert record["environment"]["commit"]
    assert record["records_made_now"] == 8
    assert [c["name"] for c in record["configurations"]] == ["full prefill none", *only[1:]]
    assert all(len(c["samples"]["kl_first"]) == 2 for c in record["configurations"])
    assert len(list(tmp_path.glob("fidelity_*.png"))) == 4
    text = (tmp_path / "fidelity.md").read_text()
    assert main(command) == 0
    assert json.loads((tmp_path / "fidelity.json").read_text())["records_made_now"] == 0
    assert (tmp_path / "fidelity.md").read_text() == text
    assert main([*command, "--only", "no such"]) == 1
    assert main(["--prompts", str(tmp_path / "missing.jsonl"), "--out", str(tmp_path)]) == 2
    assert main([*command, "--chunk-tokens", "48", "--tasks", "border", "--samples", "0"]) == 2


def test_the_set_for_real_models_says_what_its_records_are(tmp_path: Path) -> None:
    command = ["--real", "--samples", "1", "--tasks", "single", "--out", str(tmp_path)]
    assert main([*command, "--only", "pie none", "pie system int8"]) == 0
    [records] = tmp_path.glob("samples-*.jsonl")
    known = recorded.read(records)
    assert [each["name"] for each in known.values()] == ["pie none", "pie system int8"]
    assert all(each["environment"]["commit"] for each in known.values())
    made = [json.loads(line) for line in records.read_text().splitlines()]
    assert [record["configuration"] for record in made] == list(known)
    assert all(record["text"] and record["full_text"] for record in made)


@pytest.mark.slow
def test_the_ablation_command(tmp_path: Path) -> None:
    """On prompts of a file; every part is compared with question_scout as it is."""
    line = {"system": "S\n", "documents": ["one two\n", "three\n"], "question": "Question:"}
    lines = [{**line, "question": f"Question {i}:"} for i in range(3)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["--prompts", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path), "--ablation"]
    assert main([*command, "--ratio", "0.3"]) == 0
    record = json.loads((tmp_path / "ablation.json").read_text())
    assert len(record["prompts"]) == 3
    rivals = {c["rival"] for c in record["comparisons"]}
    assert rivals == {"question_scout r=0.3 system"}
    assert (tmp_path / "ablation_effects.png").exists()
    too_long = {**line, "documents": ["word " * 1100]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(too_long))
    assert main(command[:4]) == 2


def test_variants_choose_what_they_say(model: Tiny) -> None:
    """First tokens come before better ones, up to half of the rows."""
    run = model.stitch(WithFirstTokens(0.15))
    first = [s.start for s in run.layout.documents]
    chosen = run.result.rows.tolist()
    assert set(first[:2]) <= set(chosen)
    assert not set(first) <= set(model.stitch(QuestionScout(0.15)).result.rows.tolist())
    few, plain = model.stitch(FewKeys(0.3)), model.stitch(QuestionScout(0.3))
    assert few.result.rows.equal(plain.result.rows)
    assert few.result.flops < plain.result.flops
    assert not few.logits.allclose(plain.logits, atol=1e-3)


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
