"""The fidelity bench on tiny random models: full prefill is at no distance from itself, every way
to recompute everything is full prefill, and what is recorded is recorded once."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fidelity import table
from benchmarks.fidelity.__main__ import main
from benchmarks.fidelity.ablation import Calibration, ablation, candidates
from benchmarks.fidelity.answers import greedy
from benchmarks.fidelity.case import Case
from benchmarks.fidelity.configuration import Configuration
from benchmarks.fidelity.configurations import standard
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.picking import Pick
from benchmarks.fidelity.prompts import Prompt, of_file, of_tasks
from benchmarks.fidelity.recipes import (
    ExactFirstLayer,
    Oracle,
    RandomEvidence,
    Tapered,
    TwoRounds,
    ValueWeighted,
)
from benchmarks.fidelity.records import Record, Records
from benchmarks.fidelity.runner import complete, measure_all
from benchmarks.fidelity.statistics import Bootstrap
from benchmarks.fidelity.stored import SegmentStore
from benchmarks.fidelity.summary import Summary, duels
from benchmarks.fidelity.variants import AttendedDeviation, RandomRows, ScoutVariant
from service.errors import InvalidRequest
from service.settings import demo_model
from service.worker.fusion.a3 import Method as A3
from service.worker.fusion.cacheblend import Method as CacheBlend
from service.worker.fusion.legolink import Method as LegoLink
from service.worker.fusion.pie import Method as Pie
from service.worker.fusion.question_scout import Method as QuestionScout
from service.worker.fusion.vanilla import Method as Vanilla
from service.worker.layout import PromptLayout
from tests.worker.tiny import Q, S, Tiny, tiny

FULL = Configuration("full prefill", Vanilla(), prefix_mode="none")
EVERYTHING = {
    "a3": A3(1.0),
    "cacheblend": CacheBlend(1.0),
    "legolink": LegoLink(40, 40),
    "question_scout": QuestionScout(1.0),
    "random": RandomRows(1.0),
    "random exact": RandomRows(1.0, exact_layers=2),
    "scout variant": ScoutVariant(Pick(1.0, 2, 2)),
    "attended deviation": AttendedDeviation(1.0),
    "oracle": Oracle(Pick(1.0)),
    "random evidence": RandomEvidence(Pick(1.0)),
    "value weighted": ValueWeighted(Pick(1.0)),
    "exact first layer": ExactFirstLayer(Pick(1.0)),
    "tapered": Tapered(Pick(1.0), 1.0, 1.0),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny("llama", "llama3")


def a_prompt(seed: int = 0, sizes: Sequence[int] = (11, 6, 0, 9)) -> Prompt:
    draw = random.Random(seed)
    documents = tuple(tuple(draw.randrange(2, 100) for _ in range(size)) for size in sizes)
    return Prompt(f"task {seed % 2}", tuple(S), documents, tuple(Q), ("7 7",))


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def measured(
    model: Tiny, *configurations: Configuration, prompt: Prompt | None = None
) -> list[Record]:
    prompt = prompt or a_prompt()
    return Measurer(model.adapter, decode, longest=prompt.tokens).measure(prompt, configurations)


# -- what is measured -----------------------------------------------------------------------------


def test_full_prefill_is_at_no_distance_from_itself(model: Tiny) -> None:
    [record] = measured(model, FULL)
    assert record.kl_first < 1e-9
    assert record.agree_first == 1
    assert 0 < record.next_count <= 32
    assert record.agree_next == 1
    assert record.kl_next is not None and record.kl_next < 1e-9
    assert record.map_l2 == [0.0] * len(record.map_l2)
    assert record.k_error == record.v_error == [0.0] * model.adapter.layers
    assert record.flops == 1
    assert record.hit == 1
    assert record.rows == 26
    assert record.bytes == 0


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("prefix_mode", ["none", "system"])
def test_recomputing_everything_is_full_prefill(model: Tiny, name: str, prefix_mode: str) -> None:
    [record] = measured(model, Configuration(name, EVERYTHING[name], prefix_mode=prefix_mode))
    assert record.rows == 26
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
    """METHODS T3, through the bench: layer 0 for all, layer 1 for A3."""
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
    prompt, adapter = a_prompt(3), model.adapter
    method = Pie()
    with torch.inference_mode():
        run = model.stitch(method, prompt.system, prompt.documents, prompt.question, room=34)
        run.sequence.set_length(prompt.tokens)
        own = greedy(adapter, run.sequence, prompt.tokens, run.logits).argmax(-1).tolist()
    answer = decode([t for t in own if t not in adapter.end_ids])
    wrong, right = (
        measured(model, Configuration("pie", method, prefix_mode="none"), prompt=p)[0]
        for p in (replace(prompt, answers=("nothing",)), replace(prompt, answers=(answer,)))
    )
    assert right.right is True and wrong.right is False
    assert right.agree_first + (right.agree_next or 0) < 2  # it did leave the way
    assert measured(model, FULL, prompt=replace(prompt, answers=()))[0].right is None


def test_records_are_equal_when_run_twice(model: Tiny) -> None:
    chosen = Calibration((1, 0), ((0, 1), (2, 3)))
    configurations = [*standard(5)[::4], *ablation(5, chosen)]

    def facts() -> list[dict[str, Any]]:
        return [{**asdict(r), "seconds": 0} for r in measured(model, *configurations)]

    assert facts() == facts()


def test_every_configuration_runs_on_odd_prompts(model: Tiny) -> None:
    """No document, one token each, all empty: finite figures, no document row recomputed where
    there is none."""
    chosen = Calibration((1, 0), ((0, 1), (2, 3)))
    configurations = [*standard(5)[::4], *ablation(5, chosen), *candidates(1, 1).values()]
    for sizes in ((), (0, 0), (1, 1, 30)):
        for record in measured(model, *configurations, prompt=a_prompt(1, sizes)):
            numbers = [record.kl_first, record.flops, *record.k_error, *record.map_l2]
            assert all(math.isfinite(x) for x in numbers)
            assert record.rows <= sum(sizes)


def test_configurations_are_told_apart() -> None:
    chosen = Calibration(tuple(range(12)), tuple((at // 4, at % 4) for at in range(48)))
    for configurations in (standard(12), ablation(12, chosen), list(candidates(12, 4).values())):
        assert len({c.name for c in configurations}) == len(configurations)
        assert len({c.key for c in configurations}) == len(configurations)


# -- ways to choose rows --------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("edge", [0, 1, 4, 50])
def test_the_ablation_starts_from_the_service_method(model: Tiny, ratio: float, edge: int) -> None:
    ours = model.stitch(ScoutVariant(Pick(ratio, edge))).result
    service = model.stitch(QuestionScout(ratio, edge)).result
    assert ours.rows.equal(service.rows)
    assert ours.flops == service.flops
    assert ours.logits.equal(service.logits)


def layout_of(*sizes: int) -> PromptLayout:
    return PromptLayout.of([1, 2], [[3] * n for n in sizes], [4], cold=[False] * (len(sizes) + 1))


def test_picking_by_hand() -> None:
    layout = layout_of(5, 5)  # documents at 2..6 and 7..11, n = 13
    evidence = torch.tensor([9, 9, 0, 0, 5, 0, 0, 0, 4, 0, 3, 0, 9], dtype=torch.float32)

    def rows(**pick: Any) -> list[int]:
        return Pick(**pick).rows(layout, evidence).tolist()

    assert rows(ratio=2 / 13, first=0) == [4, 8]
    assert rows(ratio=3 / 13, first=0) == [4, 8, 10]
    assert rows(ratio=2 / 13, first=1) == [2, 7]
    assert rows(ratio=3 / 13, first=1) == [2, 4, 7]
    assert rows(ratio=5 / 13, first=1, last=1) == [2, 4, 6, 7, 11]
    assert rows(ratio=3 / 13, first=0, dilate=1) == [3, 4, 5]
    assert rows(ratio=4 / 13, first=0, pool=1) == [3, 4, 5, 7]
    assert rows(ratio=1.0) == list(range(2, 12))
    assert rows(ratio=0.0) == []


def test_two_rounds_repair_twice(model: Tiny) -> None:
    """Half of the rows each; the second round leaves the first one's KV as it was computed."""
    prompt = a_prompt()
    with torch.inference_mode(), SegmentStore.open(model.adapter) as store:
        run = model.stitch(Pie(), prompt.system, prompt.documents, prompt.question)
        case = Case.of(
            model.adapter, prompt, store, run.sequence,
            prefix_mode="none", codec="raw", evidence=torch.zeros(prompt.tokens),
        )  # fmt: skip
        first = case.prefill(ScoutVariant(Pick(0.2)))
        kept = [x.clone() for layer in range(5) for x in run.sequence.prompt_layer(layer, 38)]
        both = TwoRounds(Pick(0.4)).run(case)
        after = [x for layer in range(5) for x in run.sequence.prompt_layer(layer, 38)]
    share = math.floor(0.2 * prompt.tokens)
    assert len(first.rows) == share + len(Q)
    assert len(both.rows) == 2 * share + len(Q)
    early = [row for row in first.rows.tolist() if row < prompt.tokens - len(Q)]
    assert set(early) < set(both.rows.tolist())
    for a, b in zip(kept, after, strict=True):
        assert a[:, early].allclose(b[:, early], atol=1e-6)
    assert both.flops > 2 * first.flops * 0.9


def test_stored_segments_are_left_alone(model: Tiny) -> None:
    prompt = a_prompt()
    measurer = Measurer(model.adapter, decode, longest=prompt.tokens)
    chosen = Calibration((1, 0), ((0, 1), (2, 3)))
    [before] = measurer.measure(prompt, [Configuration("pie", Pie())])
    last = measurer.measure(prompt, [*ablation(5, chosen), Configuration("pie", Pie())])[-1]
    # What was decoded in a batch of another size differs by rounding.
    same = {"seconds": 0.0, "kl_next": 0.0}
    assert replace(before, **same) == replace(last, **same)
    assert before.kl_next == pytest.approx(last.kl_next, rel=1e-5)


# -- resuming -------------------------------------------------------------------------------------


class Counting(Measurer):
    """Counts what it is asked for."""

    def __init__(self, model: Tiny, longest: int) -> None:
        super().__init__(model.adapter, decode, longest=longest)
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


# -- figures over prompts -------------------------------------------------------------------------


def a_record(**changes: Any) -> Record:
    facts: dict[str, Any] = {
        "prompt": "p", "configuration": "c", "tokens": 100, "kl_first": 0.5, "agree_first": 1.0,
        "next_count": 2, "kl_next": 0.2, "agree_next": 0.5, "right": True, "rows": 15, "hit": 0.4,
        "flops": 0.3, "bytes": 10, "seconds": 0.1, "map_l2": [0.1, 0.2], "k_error": [0.0, 0.5],
        "v_error": [0.0, 0.6],
    }  # fmt: skip
    return Record(**{**facts, **changes})


def a_summary(family: str, cost: float, kl: Sequence[float], **changes: Any) -> Summary:
    configuration = Configuration(family, Pie(), f"at {cost:g}", **changes)
    records = [a_record(flops=cost, kl_first=value) for value in kl]
    return Summary.of(configuration, records, Bootstrap(len(records)))


def test_bootstrap_of_a_constant_and_of_what_is_missing() -> None:
    bootstrap = Bootstrap(4)
    same = bootstrap.mean([2.0, 2.0, None, 2.0])
    assert (same.mean, same.low, same.high) == (2.0, 2.0, 2.0)
    assert math.isnan(bootstrap.mean([None] * 4).mean)
    spread = Bootstrap(200, seed=3).mean([0.0, 1.0] * 100)
    # Standard error √(0.25 / 200) = 0.0354; 95 % of a normal is 1.96 of them.
    assert spread.mean == 0.5
    assert spread.low == pytest.approx(0.5 - 0.0693, abs=0.01)
    assert spread.high == pytest.approx(0.5 + 0.0693, abs=0.01)


def test_means_and_pairs_by_hand() -> None:
    summary = a_summary("pie", 0.1, [0.2, 0.4])
    assert summary.kl == pytest.approx(0.3)
    assert summary.figures["rows"].mean == 0.15
    # (first + 2 · 0.2) / 3 of each prompt
    assert summary.figures["kl_answer"].mean == pytest.approx((0.6 / 3 + 0.8 / 3) / 2)
    ours, rival = a_summary("mine", 0.2, [1, 2, 3, 4]), a_summary("a3", 0.21, [2, 2, 5, 3])
    [fight] = duels([ours, rival], Bootstrap(4), None)["a3"][:1]
    assert fight.ours is ours and fight.rival is rival
    assert fight.first.difference.mean == pytest.approx(-0.5)
    assert fight.first.won == pytest.approx(2 / 3)


def test_the_rival_costs_as_much_or_more() -> None:
    ours = a_summary("mine", 0.20, [0.5] * 3)
    cheap = a_summary("a3", 0.10, [0.01] * 3)
    equal = a_summary("a3", 0.199, [0.4] * 3, prefix_mode="none")
    better = a_summary("a3", 0.25, [0.3] * 3)
    far = a_summary("a3", 0.60, [0.001] * 3)
    coded = a_summary("a3", 0.20, [0.0] * 3, codec="int8")

    def rival(*others: Summary) -> Summary:
        return duels([ours, *others], Bootstrap(3), None)["a3"][0].rival

    assert rival(cheap, equal, better, far, coded) is better
    assert rival(cheap, equal, far) is equal
    assert rival(cheap, far) is far
    only_cheap = duels([ours, cheap], Bootstrap(3), None)["a3"][0]
    assert only_cheap.rival is cheap and only_cheap.cheaper


def test_a_table_row_for_every_configuration() -> None:
    summaries = [a_summary("a3", c / 10, [0.1 * c, 0.3]) for c in range(1, 5)]
    rows = [line for line in table.quality(summaries).splitlines() if line.startswith("| a3")]
    assert len(rows) == 4
    against = duels(summaries, Bootstrap(2), None)
    text = table.report("title", summaries, ["x", "y"], against)
    assert "| a3 at 0.1 system | 15.0 % | 10.0 % | 0.2 [0.1, 0.3]" in text
    tasks = table.tasks_table(summaries, ["x", "y"]).splitlines()
    assert tasks[0] == "| configuration | x | y |"
    assert tasks[2] == "| a3 at 0.1 system | 0.1 | 0.3 |"


# -- prompts --------------------------------------------------------------------------------------


def test_more_samples_keep_the_first_ones() -> None:
    def drawn(samples: int, seed: int = 1, **changes: Any) -> list[Prompt]:
        names = ["single", "hop"]
        return of_tasks(demo_model(), names, samples=samples, chunk_tokens=48, seed=seed, **changes)

    assert drawn(3)[:4] == drawn(2)
    assert drawn(2) != drawn(2, seed=2)
    assert drawn(2) != drawn(2, held_out=False)
    for prompt in drawn(2):
        assert all(len(d) == 48 for d in prompt.documents[:-1])
        assert prompt.answers


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    line = {"system": "S\n", "documents": ["one\n", ""], "question": "Question:", "answers": ["x"]}
    path.write_text(json.dumps(line) + "\n\n" + json.dumps({**line, "task": "t"}) + "\n")
    first, second = of_file(demo_model(), path)
    assert (first.task, second.task) == ("mine", "t")
    assert first.system[0] == 1  # BOS
    assert first.documents[1] == ()
    path.write_text(json.dumps(line) + "\n" + json.dumps({"question": "?"}) + "\n")
    with pytest.raises(InvalidRequest, match="line 2"):
        of_file(demo_model(), path)


# -- the command ----------------------------------------------------------------------------------


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
