"""Does what a start would do: loads the model, compares it with transformers, embeds a sentence.

The only check that loads torch and the model's weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from retriever.errors import RetrieverError
from service.cli.checks.finding import Finding, fail, ok, warn
from service.errors import KvstitchError
from service.gateway.search.models import make_embedder
from service.models.model_finder import ModelFinder
from service.settings import Settings


def check(settings: Settings) -> Iterator[Finding]:
    yield _model(settings)
    yield _embedding(settings)


def _model(settings: Settings) -> Finding:
    from service.worker.api import add_lora, load_model, set_threads, start_up_check

    began = time.monotonic()
    try:
        folder = ModelFinder.of(settings).find(settings.model)
        if folder is None:
            return warn("start-up check", f"{settings.model} is not prepared, so it was not loaded",
                        f"run `kvstitch model fetch {settings.model}` first")  # fmt: skip
        set_threads(settings.threads)
        adapter = load_model(
            str(folder),
            dtype=settings.dtype,
            device=settings.device_of(0),
            quantize=settings.quantize,
        )
        theirs, stitched = start_up_check(adapter)
        for name, lora in settings.loras.items():
            add_lora(adapter, name, lora)
    except KvstitchError as error:
        return fail("start-up check", error.message, "it cannot be served as it is")
    except MemoryError:
        return fail("start-up check", "the model does not fit into memory", "take a smaller one")
    return ok(
        "start-up check",
        f"{adapter.family} in {str(adapter.dtype).removeprefix('torch.')} on {adapter.device}: "
        f"{theirs:.1g} to transformers, {stitched:.1g} stitched, "
        f"{time.monotonic() - began:.1f} s",
    )


def _embedding(settings: Settings) -> Finding:
    model = make_embedder(settings)
    try:
        model.start()
        dimensions = model.embed(["Is anybody there?"]).shape[1]
    except RetrieverError as error:
        return fail("embedding", str(error), "give another --embedder, or mend its endpoint")
    finally:
        model.close()
    return ok("embedding", f"a sentence became {dimensions} numbers")
