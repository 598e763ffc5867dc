"""Model folders of several families with random weights, and documents for them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.e2e.models import tiny
from tests.service.worker.model.families.test_hybrids import CONFIGS
from tests.service.worker.tiny import random_model, tiny_config

PLACES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel")
DOCUMENTS = {
    f"{place.lower()}.md": (
        f"# {place} Station\n\nThe station at {place} Hill was opened in 19{number}1 by the old "
        f"railway company. Its {number} platforms are served by trains from Port {place} every "
        f"hour of the day. The keeper of the {place} Museum collects tickets of all {number}0 "
        "lines and shows them to every visitor on Sundays.\n"
    )
    for number, place in enumerate(PLACES, start=2)
}


def make_documents(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text)
    return folder


def make_model(folder: Path, family: str) -> Path:
    """A folder that can be served: the family's tiny shape with random weights."""
    tiny(folder, list(DOCUMENTS.values()), context=1024)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    make = CONFIGS.get(family) or partial(tiny_config, family)
    config = make(vocab_size=vocabulary, max_position_embeddings=1024)
    random_model(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder
