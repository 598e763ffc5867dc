"""Model families: a decoder class each, found by the `model_type` of a model's config.

To add a family, write its class (its docstring is its row in docs/models.md), name it in
`FAMILIES` of `kvstitch.service.worker.model.supported`, and run `python -m scripts.docs_tables`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.supported import FAMILIES


def family_decoder(model_type: str) -> type[DecoderModel]:
    """Return the decoder class of a family; raises ModelRefused if it is not served."""
    if model_type not in FAMILIES:
        raise ModelRefused(
            f"model_type {model_type!r} has no decoder; served families: {', '.join(FAMILIES)}",
            field="model",
        )
    module, _, name = FAMILIES[model_type].partition(".")
    family: type[DecoderModel] = getattr(import_module(f"{__name__}.{module}"), name)
    return family


def decoder_for(model: Any) -> DecoderModel:
    """Return the decoder for a transformers model; raises ModelRefused if it is not served."""
    return family_decoder(str(model.config.model_type))(model)
