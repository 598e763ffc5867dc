"""The trainer: learns, resumes to the same parameters, renews unused embeddings."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo.language.tasks import TASKS
from demo.language.vocabulary import build_tokenizer
from demo.training.decoder import Decoder, DecoderConfig
from demo.training.evaluate_tasks import accuracy, task_rows
from demo.training.feed import SHARES, Feed, Mix, draw_rows
from demo.training.optimizer import orthogonalise
from demo.training.plan import Plan
from demo.training.rows import Packer
from demo.training.samples import Batch, View, collate
from demo.training.trainer import Trainer, losses, renew_rows

pytestmark = pytest.mark.slow

TINY = DecoderConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)
PLAN = Plan(
    model=TINY,
    steps=40,
    batch_tokens=600,
    pass_tokens=400,
    peak=10.0,
    floor=1.0,
    seed=1,
    warm_up=4,
    evaluate_every=0,
)
PACKER = Packer(build_tokenizer())
NOTHING = Mix(dict.fromkeys(TASKS, 0.0), 0.0)


def _trainer(plan: Plan = PLAN) -> Trainer:
    return Trainer(plan, Decoder(TINY, seed=1))


def _loss(trainer: Trainer, batch: Batch) -> float:
    with torch.no_grad():
        hidden = trainer.model(batch.ids, batch.positions, batch.mask)
        return float(losses(trainer.model, batch, hidden)[0] / batch.weights.sum())


def _same_weights(one: Trainer, other: Trainer) -> None:
    for name, tensor in one.optimizer.master.items():
        assert torch.equal(tensor, other.optimizer.master[name]), name


def test_every_task_has_a_share() -> None:
    assert set(SHARES) == set(TASKS)
    assert min(SHARES.values()) > 0


def test_loss_falls() -> None:
    trainer = _trainer()
    batch = collate(draw_rows(PLAN, PACKER, NOTHING, 0))
    before = _loss(trainer, batch)
    assert not trainer.run(Feed(PLAN), until=30)
    assert _loss(trainer, batch) < before - 0.3


def test_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    plan = replace(PLAN, refresh=4)
    whole, first, second = _trainer(plan), _trainer(plan), _trainer(plan)
    whole.run(Feed(plan), until=7)
    first.run(Feed(plan), checkpoint=tmp_path / "run", until=3)
    assert second.load(tmp_path / "run")
    second.run(Feed(plan), until=7)
    _same_weights(whole, second)
    assert whole.known == second.known


def test_workers_draw_what_the_process_itself_would() -> None:
    plan = replace(PLAN, refresh=3, steps=3)
    alone, helped = _trainer(plan), _trainer(plan)
    assert alone.run(Feed(plan))
    with Feed(plan, workers=1) as feed:
        assert helped.run(feed)
    _same_weights(alone, helped)


def test_a_run_by_the_clock_ends(tmp_path: Path) -> None:
    plan = replace(PLAN, steps=None, minutes=1e-6)
    trainer = _trainer(plan)
    assert trainer.progress == 0
    assert trainer.run(Feed(plan), log=tmp_path / "log.jsonl", checkpoint=tmp_path / "run")
    assert trainer.step == 1
    assert json.loads((tmp_path / "log.jsonl").read_text())["step"] == 1
    resumed = _trainer(plan)
    assert resumed.load(tmp_path / "run")
    assert resumed.run(Feed(plan))
    assert resumed.step == 1


def test_unused_embeddings_are_renewed_and_trained_ones_kept() -> None:
    model = Decoder(TINY)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        pushed = torch.randn(TINY.hidden_size, generator=generator)
        model.embed_tokens.weight[[5, *range(1000, 1536)]] = pushed
    before = model.embed_tokens.weight.detach().clone()
    assert renew_rows(model, 1000, seed=0) < 600
    kept = (model.embed_tokens.weight == before).all(1)
    assert not kept[5]
    assert not kept[1000:].any()
    assert kept[:1000].float().mean() > 0.95


def test_untrained_model_knows_nothing() -> None:
    rows = task_rows(PACKER, "single", stories=10, questions=4, seed=1)
    assert accuracy(Decoder(TINY, seed=1), rows, View.FULL) < 0.2


def test_orthogonalise_gives_singular_values_near_one() -> None:
    matrices = torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.min() > 0.3
    assert values.max() < 1.5


def test_rows_of_a_step_are_its_own() -> None:
    first = [row.ids for row in draw_rows(PLAN, PACKER, NOTHING, 0)]
    assert first == [row.ids for row in draw_rows(PLAN, PACKER, NOTHING, 0)]
    step = random.Random(0).randint(1, 30)
    assert draw_rows(PLAN, PACKER, NOTHING, step)[0].ids != first[0]
