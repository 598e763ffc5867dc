"""Head scores of HeadKV (docs/specification.md §2.6): by hand, and against the reference's
attention."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstitch.service.prompt import system_ids
from kvstitch.service.worker.api import CALIBRATION_FILE
from kvstitch_tune.head_scores import (
    Answer,
    HeadScores,
    Probe,
    Prober,
    answer,
    step_scores,
    word_overlap,
)
from kvstitch_tune.model_calibration import merge
from kvstitch_tune.prompts import prefill_ids
from tests.e2e.models import DEMO
from tests.e2e.models import tiny as untrained_folder
from tests.service.worker.model.families.test_gemma4 import KINDS, gemma
from tests.service.worker.model.families.test_hybrids import CONFIGS, hybrid
from tests.service.worker.tiny import Tiny, assert_close, random_model, tiny_config, tiny_of

COPIED = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2)).tolist()
TEXT = ["The secret number of Berlin is 1234567. What is it?", "Question: the answer\nAnswer:"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


# -- scores ---------------------------------------------------------------------------------------


def test_step_by_hand() -> None:
    """Needle at 2..4 of ids 7 8 9 5 9 | 6: four heads of one layer, 9 is being generated."""
    probe = Probe((7, 8, 9, 5, 9), range(2, 5), "")
    weights = torch.tensor(
        [
            [0.10, 0.10, 0.50, 0.20, 0.05, 0.05],  # looks at a 9 in the needle
            [0.10, 0.10, 0.20, 0.50, 0.05, 0.05],  # in the needle, another token
            [0.60, 0.02, 0.30, 0.03, 0.04, 0.01],  # elsewhere
            [0.01, 0.02, 0.03, 0.02, 0.02, 0.90],  # at what was just generated
        ]
    )[None]
    r, r2 = step_scores(weights, probe, 9)
    assert_close("calibrate: R", r, torch.tensor([[1 / 3, 0, 0, 0]]))
    expected = torch.tensor([[0.70, 0.70, 0.34, 0.03]]) / 3  # of the best three, those inside
    assert_close("calibrate: R2", r2, expected)


def test_ties_go_to_the_lower_index() -> None:
    probe = Probe((1, 2, 3, 4), range(2, 4), "")
    r, r2 = step_scores(torch.full((1, 1, 4), 0.25), probe, 3)
    assert float(r) == 0 and float(r2) == 0  # 0 and 1 are the two best


@pytest.mark.parametrize(
    ("expected", "text", "recall", "f1"),
    [
        ("Thames", "thames", 1, 1),
        ("paper and glass", "glass, paper", 2 / 3, 4 / 5),
        ("Thames", "The Thames, of course, as ever.", 1, 2 / 7),
        ("a a b", "a c", 1 / 3, 2 / 5),
        ("Thames", "Amur", 0, 0),
        ("Thames", "", 0, 0),
    ],
)
def test_word_overlap(expected: str, text: str, recall: float, f1: float) -> None:
    assert word_overlap(expected, text) == pytest.approx((recall, f1))


def test_only_good_answers_count_and_scores_sum_to_one() -> None:
    """A rambling answer counts for R alone, half of one for R2 alone, a wrong one for neither."""
    found = HeadScores()
    first = Answer([], torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    other = Answer([], torch.tensor([[0.0, 3.0]]), torch.tensor([[50.0, 0.0]]))
    half = Answer([], torch.tensor([[70.0, 0.0]]), torch.tensor([[8.0, 0.0]]))
    found.add(first, "Thames", "Thames")
    found.add(other, "Thames", "It is the Thames of course")
    found.add(half, "paper glass", "paper")
    found.add(other, "Thames", "Amur")
    assert found.probes == 4
    assert {name: tally.answered for name, tally in found.tallies.items()} == {"R": 2, "R2": 2}
    assert found.head_scores["R"] == [[0.25, 0.75]]
    assert found.head_scores["R2"][0] == pytest.approx([0.8, 0.2])


def test_nothing_answered_is_no_score() -> None:
    found = HeadScores()
    found.add(Answer([], torch.ones(1, 2), torch.ones(1, 2)), "Thames", "Amur")
    assert found.head_scores == {}


# -- the decode loop ------------------------------------------------------------------------------


def prompt_ids() -> tuple[int, ...]:
    return tuple(torch.randint(3, 100, (40,), generator=torch.Generator().manual_seed(1)).tolist())


def greedy(model: Tiny, ids: tuple[int, ...], steps: int) -> list[int]:
    out: list[int] = []
    for _ in range(steps):
        out.append(int(model.reference.vanilla([*ids, *out]).logits[-1].argmax()))
    return out


@pytest.mark.parametrize(("family", "words"), [("llama", [15, 88, 87]), ("qwen3", [5, 62, 35])])
def test_answer_and_scores_are_the_references(family: str, words: list[int]) -> None:
    """Tokens greedy; R and R2 over the attention of the row that generated each. The prompt is
    made of three tokens that the answer repeats, so that some heads copy."""
    model = tiny_of(random_model(tiny_config(family, "llama3")))
    ids, steps = tuple(words[i] for i in COPIED), 7
    tokens = greedy(model, ids, steps)
    probe = Probe(ids, range(12, 36), "")
    attention = model.reference.vanilla([*ids, *tokens]).attention
    r, r2 = torch.zeros(5, 6), torch.zeros(5, 6)
    for step, token in enumerate(tokens):
        row = len(ids) - 1 + step
        for layer, heads in enumerate(attention):
            for head in range(6):
                weights = heads[head, row, : row + 1].tolist()
                order = sorted(range(row + 1), key=lambda t: (-weights[t], t))
                if order[0] in probe.needle and ids[order[0]] == token:
                    r[layer, head] += 1 / 24
                r2[layer, head] += sum(weights[t] for t in order[:24] if t in probe.needle) / 24
    found = answer(model.decoder, probe, steps)
    assert found.tokens == tokens
    assert_close("calibrate: R", found.r, r)
    assert_close("calibrate: R2", found.r2, r2)
    assert bool((r > 0).any()) and bool((r == 0).any())


@pytest.mark.parametrize("family", [*KINDS, *CONFIGS])
def test_families_whose_steps_are_more_than_layers_answer_as_full_prefill(family: str) -> None:
    """Mixers before, between and behind layers, and blocks behind them that borrow KV."""
    decoder = (hybrid if family in CONFIGS else gemma)(family).decoder
    ids = prompt_ids()
    out: list[int] = []
    while len(out) < 5:
        out.append(int(prefill_ids(decoder, [*ids, *out]).logits.argmax()))
    found = answer(decoder, Probe(ids, range(4, len(ids)), ""), 5)
    assert found.tokens == [token for token in out if token not in decoder.end_ids]
    assert bool((found.r2 > 0).all())


def test_an_end_token_ends_the_answer_and_scores_nothing() -> None:
    ids = prompt_ids()
    tokens = greedy(tiny_of(random_model(tiny_config("llama"))), ids, 6)
    end = next(i for i in range(1, 6) if tokens[i] not in tokens[:i])
    config = tiny_config("llama", eos_token_id=tokens[end])
    found = answer(tiny_of(random_model(config)).decoder, Probe(ids, range(4, 9), ""), 6)
    plain = tiny_of(random_model(tiny_config("llama")))
    same = answer(plain.decoder, Probe(ids, range(4, 9), ""), end)
    assert found.tokens == tokens[:end] == same.tokens
    assert found.r2.equal(same.r2)


# -- probes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_folder(tmp_path_factory.mktemp("untrained") / "model", TEXT, context=1024)


def test_needle_probes_on_any_tokenizer(untrained: Path) -> None:
    """The span decodes to the fact, in the prompt of the folder's own format, about as long as
    asked for; at different depths."""
    for folder in (DEMO, untrained):
        prober = Prober(folder, tokens=300)
        decode = prober.tokenizer.decode
        probes = [prober.needle(random.Random(i)) for i in range(8)]
        for probe in probes:
            span = decode(probe.ids[probe.needle.start : probe.needle.stop])
            assert "secret number" in span and span.strip().endswith(f"is {probe.answer}.")
            assert "." not in span.strip()[:-1]
            whole = decode(probe.ids)
            assert whole.count(probe.answer) == 1 and whole.endswith("?\nAnswer:")
            assert 300 <= len(probe.ids) < 480
            system = system_ids(prober.format, prober.tokenizer)
            assert list(probe.ids[: len(system)]) == system
        assert len({probe.needle.start for probe in probes}) > 4


@pytest.mark.parametrize("before", ["", "[1, 2]", "null", "7", '{"other": 1}'])
def test_other_facts_stay_and_rubbish_does_not(tmp_path: Path, before: str) -> None:
    (tmp_path / CALIBRATION_FILE).write_text(before)
    merge(tmp_path / CALIBRATION_FILE, mine=[2])
    kept = {"other": 1} if "other" in before else {}
    assert json.loads((tmp_path / CALIBRATION_FILE).read_text()) == {**kept, "mine": [2]}
    assert [path.name for path in tmp_path.iterdir()] == [CALIBRATION_FILE]
