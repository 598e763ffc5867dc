"""An engine that serves LoRA adapters beside the base model: none ever sees another's KV."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from kvstitch.kvstore import MemoryTier
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.replies import Explained
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method
from tests.service.worker.engines import A3, DOCUMENTS, PIE, VANILLA, Rig, rig
from tests.service.worker.gate.gated_engine import ALL as EVERY_ANSWER
from tests.service.worker.gate.gated_engine import ask, values
from tests.service.worker.lora_folders import with_loras, write_lora
from tests.service.worker.tiny import Q, S, Tiny, random_model, tiny_config

NAMES = ("", "one", "two")
SAMKV = Method("samkv")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A model with two adapters, and one of them under another name, too."""
    folder = tmp_path_factory.mktemp("loras")
    model = random_model(tiny_config("qwen3", "llama3"))
    one = write_lora(folder / "one", model)
    two = write_lora(folder / "two", model, modules=("q_proj", "v_proj"), seed=2)
    again = shutil.copytree(one, folder / "again")
    return with_loras(model, one=one, two=two, again=again)


@pytest.fixture
def running(adapted: Tiny) -> Iterator[Rig]:
    with rig(adapted) as r:
        yield r


def tiers(report: Report) -> list[str]:
    return [document.tier for document in report.documents]


@pytest.mark.parametrize("method", [PIE, A3, SAMKV], ids=lambda m: m.name)
def test_a_chunk_of_another_adapter_is_never_used(running: Rig, method: Method) -> None:
    running.precompute()
    with_base, report = running.answer(method)
    assert tiers(report) == ["memory"] * 3
    fresh, report = running.answer(method, lora="one")
    assert tiers(report) == ["cold"] * 3 and report.cached_tokens == 0
    running.run()  # what was missed is computed and stored meanwhile
    _, report = running.answer(method, lora="one")
    assert tiers(report) == ["memory"] * 3
    _, report = running.answer(method, lora="two")
    assert tiers(report) == ["cold"] * 3 and report.cached_tokens == 0
    again, report = running.answer(method)
    assert again == with_base != fresh and tiers(report) == ["memory"] * 3


def test_an_adapter_is_known_by_its_weights_and_not_its_name(running: Rig) -> None:
    running.precompute(loras=["one"])
    tokens, report = running.answer(PIE, lora="again")
    assert tiers(report) == ["memory"] * 3
    assert tokens == running.answer(PIE, lora="one")[0]


def test_missing_chunks_are_computed_with_the_adapter(adapted: Tiny) -> None:
    """By themselves, as precompute does, behind what it computes them behind."""
    documents = [
        ChunkTokens(1, DOCUMENTS[0].ids),
        ChunkTokens(2, DOCUMENTS[1].ids, [DOCUMENTS[2].ids]),
    ]
    for prefix_mode in ("none", "system", "primer", "neighbours"):
        with rig(adapted) as r:
            r.precompute(documents, prefix_mode, loras=NAMES)  # queued together
            stored = r.answer(PIE, documents, prefix_mode=prefix_mode, lora="two")
            assert tiers(stored[1]) == ["memory"] * 2
        with rig(adapted) as r:
            r.precompute(documents, prefix_mode)  # the base model's parts lie ready to be mistaken
            wanted = {"prefix_mode": prefix_mode, "lora": "two", "cold": "as_stored"}
            computed = r.answer(PIE, documents, **wanted)
            assert tiers(computed[1]) == ["cold"] * 2 and computed[0] == stored[0]


def test_kept_prompts_are_continued_by_the_same_adapter_only(adapted: Tiny) -> None:
    documents = [ChunkTokens(n, [n + 3 + i for i in range(30)]) for n in (1, 2)]
    with rig(adapted, prefix_cache=True, pool_tokens=1000) as r:
        for name in NAMES:
            expected, report = r.answer(VANILLA, documents, lora=name)
            assert report.reused_tokens == 0
            again, report = r.answer(VANILLA, documents, lora=name)
            assert report.reused_tokens == report.prompt_tokens and again == expected
        longer = [*Q, 5, 6, 7]
        for name in NAMES:
            continued, report = r.answer(VANILLA, documents, question=longer, lora=name)
            assert report.reused_tokens > 60
            fresh = r.answer(VANILLA, documents, question=longer, lora=name, prefix_cache=False)
            assert continued == fresh[0]


def test_a_deletion_deletes_what_every_adapter_has_stored(adapted: Tiny) -> None:
    with rig(adapted, tiers=[memory := MemoryTier(1 << 24)]) as r:
        r.precompute(prefix_mode="system", loras=NAMES)
        r.store.flush(60)
        stored = set(memory.keys())
        purged = stored & r.engine.admission.purged(S, DOCUMENTS, "")
        assert len(purged) == 9 and len(stored - purged) == 3  # S of each is left


def test_the_gate_compares_with_full_prefill_of_the_same_adapter(adapted: Tiny) -> None:
    """One document behind S is exact, so there is no difference unless another model is asked."""
    with rig(adapted, checks=EVERY_ANSWER) as r:
        r.precompute(prefix_mode="system", loras=["one"])
        ask(r, PIE, DOCUMENTS[:1], prefix_mode="system", lora="one")
        found = values(r)
        assert found["kvstitch_gate_checks_total", "pie", "agree"] == 1
        assert found["kvstitch_gate_kl_nats_sum", "pie"] < 1e-6


def test_an_explanation_looks_for_the_adapters_chunks(running: Rig) -> None:
    running.precompute()
    for name, expected in (("", "memory"), ("one", "cold")):
        running.engine.explain(Generate(f"e{name}", S, DOCUMENTS, Q, PIE, lora=name))
        running.run()
        events: list[object] = list(running.events)
        while not any(isinstance(e, Explained) and e.id == f"e{name}" for e in events):
            events += running.engine.step()
        (found,) = [e for e in events if isinstance(e, Explained) and e.id == f"e{name}"]
        assert [d.tier for d in found.forecast.documents] == [expected] * 3


def test_an_unknown_adapter_is_refused_with_the_names(running: Rig) -> None:
    with pytest.raises(InvalidRequest, match="'three': this worker has again, one, two") as e:
        running.submit(PIE, lora="three")
    assert e.value.field == "adapter"
