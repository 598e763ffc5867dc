"""Tables of real models: what counts as right, and a page that is made from records alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality import table
from benchmarks.quality.configurations import Configuration, real
from benchmarks.quality.outcomes import of_full_prefill, outcome, right
from benchmarks.quality.page import Row, published_order
from benchmarks.quality.records import Record, Records
from kvstitch_tune.prompts import Prompt
from service.settings import demo_model
from service.worker.api import A3, FullReuse, Pie
from tests.benchmarks.cases import measured
from tests.service.worker.tiny import Tiny

PROMPT = Prompt("nq7", (1,), ((2, 3),), (4,), ("The Red Cross", "ICRC"))


def a_record(text: str, full: str = "It was the Red Cross.", **more: object) -> Record:
    record = Record(
        prompt=PROMPT.key, configuration="c", tokens=4, kl_first=0.4, agree_first=1.0, next_count=3,
        kl_next=0.2, agree_next=1 / 3, rows=2, flops=0.3, bytes=9,
        seconds=0.1, text=text, full_text=full,
    )  # fmt: skip
    return replace(record, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("It was the Red Cross.", 1),
        ("it was a red cross", 1),
        ("The ICRC did", 1),
        ("A cross that is red", 0),
        ("The red crossing", 0),
        ("", 0),
    ],
)
def test_right_is_an_accepted_answer_in_whole_words(text: str, is_right: float) -> None:
    assert right(text, PROMPT) == is_right


def test_an_outcome_compares_with_full_prefill() -> None:
    same = outcome(a_record(" It was the Red Cross. "), PROMPT)
    assert (same.same, same.similar, same.right_of_full) == (1, 1, 1)
    assert same.kl == pytest.approx((0.4 + 3 * 0.2) / 4)
    assert same.agree == pytest.approx(0.5)
    assert same.rows == 0.5
    other = outcome(a_record("It was nobody."), PROMPT)
    assert (other.same, other.right, other.right_of_full) == (0, 0, 0)
    assert 0 < other.similar < 1
    long = outcome(a_record("It was the red Moon", full="It was the red cross"), PROMPT)
    assert (long.before_difference, same.before_difference) == (0.8, 1)
    assert (other.exact, outcome(a_record("The Red Cross!"), PROMPT).exact) == (0, 1)
    lucky = outcome(a_record("The ICRC", full="Nobody"), PROMPT)
    assert (lucky.right, lucky.right_of_full) == (1, None)
    assert of_full_prefill(a_record("x", full="Nobody"), PROMPT).right_of_full is None


def test_records_hold_both_answers(model: Tiny) -> None:
    full, pie = measured(
        model, Configuration("full", real([5])[0].method), Configuration("p", Pie())
    )
    assert full.text == full.full_text == pie.full_text
    assert full.text
    assert full.full_seconds == pie.full_seconds
    assert outcome(pie, PROMPT).seconds == pie.seconds / (pie.full_seconds or 0)
    assert outcome(replace(pie, full_seconds=None), PROMPT).seconds is None


def test_the_published_order_is_decided_by_differences_that_are_large() -> None:
    def row(name: str, kl: float) -> Row:
        records = [a_record("x", kl_first=kl + i / 1000, kl_next=kl) for i in range(40)]
        return Row(name, [outcome(r, PROMPT) for r in records])

    full = Row("full prefill", [of_full_prefill(a_record("x"), PROMPT)] * 40)
    rows = [full, row("full_reuse none", 0.5), row("pie none", 0.2), row("pie system", 0.9)]
    order = published_order([*rows, row("a3 r=0.15 system", 0.1), row("a3 layer 8 r=0.15", 0.0)])
    assert order is not None
    lines = [line.split(" | ") for line in order.splitlines() if line.startswith("| KL")]
    said = {line[1]: line[-1] for line in lines}
    assert said == {
        "a3 r=0.15 system before pie system": "as the papers say |",
        "a3 r=0.15 system before full_reuse none": "as the papers say |",
        "pie system before full_reuse none": "the other way round |",
    }
    assert published_order(rows[:1]) is None


def test_the_page_is_made_from_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [replace(PROMPT, task=f"nq{n % 2}", question=(n,)) for n in range(6)]
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(
            json.dumps({
                "task": p.task, "system": p.system, "documents": p.documents,
                "question": p.question, "answers": p.answers,
            })
            + "\n"
            for p in prompts
        )
    )  # fmt: skip
    configurations = [
        Configuration("full_reuse", FullReuse(), prefix_mode="none"),
        Configuration("a3", A3(), "r=0.15"),
        Configuration("pie", Pie()),
    ]
    records = Records(tmp_path / "samples.jsonl")
    for number, prompt in enumerate(prompts):
        # The run is not finished: the last prompt lacks two configurations.
        for each in configurations[: 1 if number == 5 else 3]:
            text = "The Red Cross" if each.family != "pie" else "No"
            made = a_record(text, prompt=prompt.key, configuration=each.key)
            records.add([made])
    records.note(configurations[:2], {"commit": "one"})
    records.note(configurations, {"commit": "two"})
    given = ["--records", str(records.path), "--prompts", str(file), "--model", str(demo_model())]
    given += ["--out", str(tmp_path / "real"), "--name", "nq"]
    assert table.main([*given, "--base", "a3 r=0.15 system"]) == 0
    page = (tmp_path / "real" / "nq.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out.rstrip("\n") + "\n"
    assert "5 prompts of 4 to 4 tokens" in page
    assert "## By task" in page and "## Against a3" in page
    raw = json.loads((tmp_path / "real" / "nq.json").read_text(encoding="utf-8"))
    assert [c["commit"] for c in raw["configurations"]] == ["one", "one", "two"]
    found = {each["name"]: each["samples"]["right"] for each in raw["results"]}
    assert found == {
        "full prefill": [1.0] * 5,
        "full_reuse none": [1.0] * 5,
        "a3 r=0.15 system": [1.0] * 5,
        "pie system": [0.0] * 5,
    }
    assert table.main([*given, "--base", "nonsense"]) == 2
    assert table.main([*given, "--only", "nonsense*"]) == 1
