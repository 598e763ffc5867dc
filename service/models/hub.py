"""Downloads a model of the Hugging Face hub, into huggingface_hub's own cache."""

from __future__ import annotations

from pathlib import Path

from service.errors import ModelUnavailable


def download(model: str) -> Path:
    """The folder of a hub id, downloaded if it is not in the cache.

    Raises:
        ModelUnavailable: It cannot be downloaded.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelUnavailable(
            f"{model} is no folder here, and to download it huggingface_hub must be installed"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
    except Exception as error:
        raise ModelUnavailable(
            f"{model} is no folder here and could not be downloaded: {error}"
        ) from error
