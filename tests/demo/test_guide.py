"""The guide: links point where the answer is, and its loss falls to nothing for perfect heads."""

import random

import torch

from demo.language.tasks import TASKS
from demo.language.vocabulary import build_tokenizer
from demo.training.decoder import Decoder, DecoderConfig
from demo.training.guide import guide_loss
from demo.training.guide_layers import ANSWER_LAYER, COPY_LAYERS
from demo.training.rows import Packer, Part, Row
from demo.training.samples import collate

PACKER = Packer(build_tokenizer())


def _row(task: str) -> Row:
    rng = random.Random(4)
    story = TASKS[task].write(rng, False, 3)
    return PACKER.row(rng, [Part(task, story, list(story.asked))])


def test_a_number_is_copied_token_by_token() -> None:
    row = _row("niah")
    links = [link for link in row.links if link[0] in COPY_LAYERS]
    assert len(links) > 15
    for _, place, source in links:
        assert row.ids[place + 1] == row.ids[source]


def test_listed_values_come_from_their_sentences() -> None:
    row = _row("list")
    links = [link for link in row.links if link[0] == ANSWER_LAYER]
    assert len(links) == 9
    for _, place, source in links:
        assert row.ids[place + 1] == row.ids[source]


def test_copy_rows_link_to_the_token_that_followed() -> None:
    row = PACKER.copy_row(random.Random(1), 60)
    assert row.links
    for layer, place, source in row.links:
        assert layer in COPY_LAYERS
        assert row.ids[place] == row.ids[source - 1]
        assert row.ids[place + 1] == row.ids[source]


def test_guide_trains_queries_and_keys() -> None:
    config = DecoderConfig(hidden_size=32, intermediate_size=16, head_dim=16)
    model = Decoder(config)
    batch = collate([_row("chain"), PACKER.copy_row(random.Random(1), 60)])
    streams: list[torch.Tensor] = []
    model(batch.ids, batch.positions, batch.mask, streams)
    assert len(streams) == config.num_hidden_layers
    guide_loss(model, batch, streams).backward()
    gradient = model.layers[ANSWER_LAYER].self_attn.q_proj.weight.grad  # type: ignore[union-attr]
    assert isinstance(gradient, torch.Tensor)
    assert gradient[: 2 * config.head_dim].abs().sum() > 0
    assert gradient[2 * config.head_dim :].abs().sum() == 0
