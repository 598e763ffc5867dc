"""The trainer: learns, resumes to the same parameters, renews unused embeddings."""

import random
from pathlib import Path

import torch

from demo.decoder import Decoder, DecoderConfig
from demo.evaluate_tasks import accuracy, task_rows
from demo.optimizer import orthogonalise
from demo.samples import Batch, View, collate
from demo.tasks import TASKS
from demo.train import SHARES, Plan, Trainer, losses, renew_rows

PLAN = Plan(steps=40, batch_tokens=600, peak=10.0, floor=1.0, seed=1, warm_up=4)
TINY = DecoderConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def _trainer() -> Trainer:
    return Trainer(PLAN, Decoder(TINY, seed=1))


def _loss(trainer: Trainer, batch: Batch) -> float:
    with torch.no_grad():
        hidden = trainer.model(batch.ids, batch.positions, batch.mask)
        return float(losses(trainer.model, batch, hidden)[0] / batch.weights.sum())


def test_every_task_has_a_share() -> None:
    assert set(SHARES) == set(TASKS)
    assert abs(sum(SHARES.values()) - 1) < 1e-6


def test_loss_falls() -> None:
    trainer = _trainer()
    batch = collate(trainer.rows())
    before = _loss(trainer, batch)
    trainer.run(until=30, log=None, checkpoint=None, out=None)
    assert _loss(trainer, batch) < before - 0.3


def test_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    whole, first, second = _trainer(), _trainer(), _trainer()
    whole.run(until=6, log=None, checkpoint=None, out=None)
    first.run(until=3, log=None, checkpoint=tmp_path / "run.pt", out=None)
    first.save(tmp_path / "run.pt")
    second.load(tmp_path / "run.pt")
    second.run(until=6, log=None, checkpoint=None, out=None)
    for name, tensor in whole.optimizer.master.items():
        assert torch.equal(tensor, second.optimizer.master[name]), name


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
    trainer = _trainer()
    rows = task_rows(trainer.packer, "single", stories=10, questions=4, seed=1)
    assert accuracy(trainer.model, rows, View.FULL) < 0.2


def test_orthogonalise_gives_singular_values_near_one() -> None:
    matrices = torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.min() > 0.3
    assert values.max() < 1.5


def test_rows_of_a_step_are_its_own() -> None:
    trainer = _trainer()
    assert [row.ids for row in trainer.rows()] == [row.ids for row in trainer.rows()]
    trainer.step = random.Random(0).randint(1, 30)
    assert trainer.rows()[0].ids != _trainer().rows()[0].ids
