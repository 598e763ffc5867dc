"""From what `--model` says to a Hugging Face folder on this machine.

empty          the demo model, which is part of the package
a folder       in Hugging Face's layout
owner/name     a model of the Hugging Face hub
whatever else  plugins make folders of (`model_source`): a .gguf file, or a name as smollm2

It is told apart without opening any file. Nothing here knows the gateway or the worker.
"""

from pathlib import Path

from kvstitch.service.errors import ModelRefused, ModelUnavailable
from kvstitch.service.plugins import ModelSource, hooks
from kvstitch.service.settings import Settings, demo_model


def source_of(settings: Settings) -> ModelSource | None:
    """Return what makes the model's folder, None where there is a folder or the hub has it."""
    found: ModelSource | None = hooks().model_source(settings=settings)
    return found


def find_model(settings: Settings) -> Path | None:
    """Return the folder of a model that is on this machine, else None. Raises ModelRefused: there
    is no such model."""
    if source := source_of(settings):
        return source.find()
    return None if _is_hub_id(settings.model) else _folder(settings.model)


def prepare_model(settings: Settings) -> Path:
    """Return the folder of a model, after fetching or converting it if need be. Raises
    ModelRefused: there is no such model, or it cannot be served; ModelUnavailable: it cannot be
    fetched."""
    if source := source_of(settings):
        return source.prepare()
    if not _is_hub_id(settings.model):
        return _folder(settings.model)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.jinja", "*.safetensors"]
    try:
        return Path(snapshot_download(settings.model, allow_patterns=patterns))
    except Exception as error:
        raise ModelUnavailable(
            f"{settings.model} is no folder here and could not be downloaded: {error}"
        ) from error


def _is_hub_id(model: str) -> bool:
    """Return whether `model` reads as owner/name and is nothing on this machine."""
    outside = not model.startswith(("/", ".", "~")) and not Path(model).expanduser().exists()
    return outside and model.count("/") == 1


def _folder(model: str) -> Path:
    """Return the model folder of that name, or the demo model's."""
    if not model:
        if not (demo_model() / "config.json").is_file():
            raise ModelRefused(
                f"there is no demo model in {demo_model()}: install kvstitch again, "
                "or give a model folder with --model"
            )
        return demo_model()
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ModelRefused(
            f"{model} is neither a model folder, a Hugging Face id (owner/name), nor a .gguf file "
            "or a name that the plugin kvstitch-gguf knows (`kvstitch model list`)"
        )
    if not (path / "config.json").is_file():
        raise ModelRefused(f"{path} holds no config.json: not a Hugging Face model folder")
    return path.resolve()
