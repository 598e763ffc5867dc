"""A sweep against a small real server, one of whose methods is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from loadtest.rate_sweep import Step, StepRunner, StepSettings, at_rate, sweep
from loadtest.reporting.goodput_plot import goodput
from loadtest.reporting.knee import knees
from loadtest.reporting.run_summary import Slo
from loadtest.sending.streaming_client import StreamingClient
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.routes import CorpusDocument, MethodUnderTest, RagRoute
from loadtest.traffic.workloads import Zipf

USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
ANSWER = f"event: done\ndata: {json.dumps({'usage': USAGE})}\n\n"
HEAD = "HTTP/1.1 {} x\r\ncontent-length: {}\r\n\r\n"
PATTERN = StepSettings(step_s=0.5, warmup_s=0.0, patience_s=60.0, max_lag_s=10.0)
METHODS = [MethodUnderTest.parse("full"), MethodUnderTest.parse("other")]
LABELS = [method.label for method in METHODS]
WORK = Zipf([CorpusDocument("d", "", "Text.")], [CorpusQuestion("Why?")], 1)


@asynccontextmanager
async def refusing(method: str) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers at once, `method` with 503; yields the bodies it received."""
    bodies = []
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(json.loads(await reader.readexactly(length)))
                refused = bodies[-1]["fusion"]["method"] == method
                text = "full up" if refused else ANSWER
                head = HEAD.format(503 if refused else 200, len(text)).encode()
                writer.write(head + text.encode())
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
        await asyncio.gather(*connections)


async def swept(rates: list[float]) -> tuple[list[Step], list[dict[str, Any]]]:
    said: list[str] = []
    # The client closes first, because the server waits for its connections to end.
    async with refusing("full") as (url, bodies), StreamingClient(url, RagRoute()) as client:
        driver = StepRunner(client, RagRoute(), PATTERN, Slo(ttft_s=60.0))
        steps, raw = await sweep([(driver, m) for m in METHODS], WORK, rates, said.append)
    assert len(said) == len(steps) == len(raw)
    return steps, bodies


async def test_a_method_that_fails_twice_rests_and_the_other_goes_on() -> None:
    steps, bodies = await swept([40, 10, 20, 60])
    order = [(step["rate"], step["method"]) for step in steps]
    assert order == [
        *((10, "full"), (10, "other"), (20, "other"), (20, "full"), (40, "other"), (60, "other")),
    ]
    assert len(bodies) == 2 * 5 + 2 * 10 + 20 + 30
    for step in steps:
        refused = step["method"] == "full"
        assert step["overloaded_503"] == (step["sent"] if refused else 0)
        assert step["slo_attainment"] == (0.0 if refused else 1.0)
    found = knees(steps, LABELS, 0.9)
    assert found["full"]["rate"] is None and found["other"]["rate"] == 60
    # There is no knee to compare with, so there is no ratio.
    assert found["other"]["further_right"] is None


async def test_a_step_that_lagged_is_run_again_and_then_stands_as_it_is() -> None:
    """With a limit below zero every generator is too late."""
    pattern = StepSettings(step_s=0.5, warmup_s=0.0, patience_s=60.0, max_lag_s=-1.0, attempts=3)
    async with refusing("nobody") as (url, bodies), StreamingClient(url, RagRoute()) as client:
        driver = StepRunner(client, RagRoute(), pattern, Slo())
        figures, records = await driver.step(at_rate(WORK, 8, pattern), METHODS[0], 1.0)
    assert not figures["valid"] and figures["attempts"] == 3
    assert len(bodies) == 3 * 4 and len(records) == figures["sent"] == 4


async def test_what_did_not_hold_is_drawn_too() -> None:
    steps, _ = await swept([10, 20])
    steps[-1]["valid"] = False
    result = {
        "steps": steps,
        "knees": knees(steps, LABELS, 0.9),
        "attainment": 0.9,
        "slo": {"ttft_ms": 300.0},
        "slo_text": "TTFT ≤ 300 ms",
        "model": "a model",
    }
    assert goodput(result).startswith(b"\x89PNG")


def test_every_rate_has_requests_of_its_own_and_all_methods_the_same() -> None:
    three, again, five = (at_rate(WORK, rate, PATTERN) for rate in (6.0, 6.0, 10.0))
    assert three == again and len(three) == 3 and len(five) == 5
    assert at_rate(WORK, 6.0, StepSettings(step_s=0.5, seed=2)) != three
