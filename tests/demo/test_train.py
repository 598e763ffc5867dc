"""The trainer: learns, resumes to the same parameters, and grows without changing its answers."""

import random
from dataclasses import replace
from pathlib import Path

import torch

from demo.decoder import Decoder, DecoderConfig
from demo.evaluate import accuracy
from demo.grow import GROWN_FROM, grow
from demo.optimizer import MasterOptimizer, orthogonalise
from demo.samples import Batch, Mix
from demo.train import Plan, Trainer, losses

PLAN = Plan(phase="shallow", steps=40, batch_tokens=600, peak=10.0, floor=1.0, seed=1, warm_up=4)
TINY = DecoderConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def _trainer() -> Trainer:
    return Trainer(PLAN, TINY, torch.float32)


def _loss(trainer: Trainer, batch: Batch) -> float:
    with torch.no_grad():
        hidden = trainer.model(batch.ids, batch.positions, batch.mask)
        return float(losses(trainer.model, batch, hidden)[0])


def test_loss_falls() -> None:
    trainer = _trainer()
    batch = trainer.sampler.batch(random.Random(9), Mix(2, (3, 3), 4), 4, torch.float32)
    before = _loss(trainer, batch)
    trainer.run(until=30, log=None, checkpoint=None, out=None)
    assert _loss(trainer, batch) < before - 0.3


def test_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    whole, first, second = _trainer(), _trainer(), _trainer()
    whole.run(until=6, log=None, checkpoint=None, out=None)
    first.run(until=3, log=None, checkpoint=tmp_path / "run.pt", out=None)
    second.load(tmp_path / "run.pt")
    second.run(until=6, log=None, checkpoint=None, out=None)
    for name, tensor in whole.optimizer.master.items():
        assert torch.equal(tensor, second.optimizer.master[name]), name


def test_growing_keeps_the_function(tmp_path: Path) -> None:
    small = replace(TINY, num_hidden_layers=GROWN_FROM)
    shallow = Trainer(PLAN, small, torch.float32)
    shallow.save(tmp_path / "shallow.pt")
    deep = Decoder(replace(TINY, num_hidden_layers=12))
    grow(MasterOptimizer(deep), tmp_path / "shallow.pt", 12)
    ids = torch.arange(3, 23)[None]
    positions = torch.arange(20)[None]
    mask = torch.full((20, 20), -1e9).triu(1)[None, None]
    with torch.no_grad():
        a, b = shallow.model(ids, positions, mask), deep(ids, positions, mask)
    assert torch.allclose(a, b, atol=1e-5)


def test_untrained_model_knows_nothing() -> None:
    trainer = _trainer()
    assert accuracy(trainer.model, trainer.sampler, blocked=False, contexts=10) < 0.2


def test_orthogonalise_gives_singular_values_near_one() -> None:
    matrices = torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.min() > 0.3
    assert values.max() < 1.5
