"""A client that leaves ends its sequence within three decode steps, by the worker's own count.

The count is the metric kvstitch_tokens_after_leaving: tokens in the worker's final report, less
those that had come when the gateway saw the client go. A step of the model here takes some ten
milliseconds, which is what a step takes where it matters, and longer than a message; but not
longer than a message on a machine whose cores are all taken, so the promise is that of some
clients that leave: a gateway that does not tell its worker breaks it every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.e2e.conftest import Documents
from tests.e2e.models import tiny
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive

CLIENTS = 30  # at most; where a core is free, the first three
IN_TIME = 2
METRIC = "kvstitch_tokens_after_leaving"
CHAT = {"messages": [{"role": "user", "content": "Which colour is it?"}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/rag/generate", {"question": "Which colour is it?"}),
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": "Which colour is it?"}),
]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, twelve: Documents) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("slow")
    model = tiny(
        folder / "model",
        [d["text"] for d in twelve],
        context=16_384,
        hidden=768,
        intermediate=1536,
        layers=8,
    )
    with Service(model, folder / "data", dtype="float32", pool_tokens=40_000) as service:
        service.ingest(twelve[:2])
        yield service


def left(service: Service) -> tuple[float, float]:
    """How many clients have left, and how many of them cost at most three steps more."""
    metrics = service.metrics()
    return metrics.value(f"{METRIC}_count"), metrics.value(f"{METRIC}_bucket", le="3.0")


def has_left(service: Service, clients: float) -> bool:
    return left(service)[0] == clients


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_client_that_leaves_costs_three_steps_at_most(
    slow: Service, path: str, body: dict[str, Any], stream: bool
) -> None:
    asked = {**body, "max_tokens": 10_000, "stream": stream}
    first, in_time_before = left(slow)
    for leaver in range(1, CLIENTS + 1):
        if stream:
            with slow.http.stream("POST", path, json=asked) as reply:
                data = (line for line in reply.iter_lines() if line.startswith("data: "))
                for _ in range(6):
                    next(data)
        else:
            with slow.asking(path, asked):
                slow.until_it_decodes()
        stopped = partial(has_left, slow, first + leaver)
        slow.until(stopped, "the worker does not say that it stopped")
        if left(slow)[1] - in_time_before >= IN_TIME:
            break
    assert left(slow)[1] - in_time_before >= IN_TIME
