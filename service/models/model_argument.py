"""What `--model` may say, told apart without opening any file.

empty          the demo model, which is part of the package
a name         e.g. smollm2, see `catalogue`; a folder of that name is ./smollm2
FILE.gguf      converted once
a folder       in Hugging Face's layout
owner/name     a model of the Hugging Face hub
"""

from __future__ import annotations

from pathlib import Path

from service.errors import ModelRefused
from service.models.catalogue import NAMED_MODELS
from service.settings import demo_model


def is_gguf(model: str) -> bool:
    return model.lower().endswith(".gguf") and not Path(model).expanduser().is_dir()


def is_hub_id(model: str) -> bool:
    """Whether `model` reads as owner/name and is nothing on this machine."""
    outside = not model.startswith(("/", ".", "~")) and not Path(model).expanduser().exists()
    return outside and model.count("/") == 1 and not is_gguf(model)


def gguf_file(model: str) -> Path:
    """The .gguf file of that name.

    Raises:
        ModelRefused: There is none.
    """
    path = Path(model).expanduser()
    if not path.is_file():
        raise ModelRefused(f"there is no file {path}")
    return path


def folder(model: str) -> Path:
    """The model folder of that name, or the demo model's.

    Raises:
        ModelRefused: There is none, or it is no model folder.
    """
    if not model:
        if not (demo_model() / "config.json").is_file():
            raise ModelRefused(
                f"there is no demo model in {demo_model()}: train it with "
                "`python -m demo.training.train`, "
                "or give a model folder with --model"
            )
        return demo_model()
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ModelRefused(
            f"{model} is neither a model folder, a .gguf file, a Hugging Face id (owner/name) nor "
            f"a name ({', '.join(NAMED_MODELS)})"
        )
    if not (path / "config.json").is_file():
        raise ModelRefused(f"{path} holds no config.json: not a Hugging Face model folder")
    return path.resolve()
