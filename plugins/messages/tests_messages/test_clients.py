"""Anthropic's own package and Claude Code: their recorded requests, and the package itself."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scripts.record_clients.__main__ import ANTHROPIC, HERE, recorded_requests
from tests.data_folder import data_folder
from tests.fakes.worker import READY, FakeWorker
from tests.service.gateway.http.routes.test_openai import says
from tests.service.gateway.http.routes.test_openai_tools import OSLO
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import Rig, running

# By the field that is named, and how often. All other requests are answered.
REFUSED = {"messages[0].content[0]": 1, "model": 1}
MESSAGE = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A service whose prompts may be as long as an agent's; it knows the name of the demo model."""
    folder = make_folder(tmp_path_factory.mktemp("roomy") / "demo_model")
    model = replace(READY.model, max_context=65_536)
    worker = FakeWorker("", ready=msgspec.structs.replace(READY, model=model, pool_tokens=99_999))
    with data_folder() as data, running(folder, data, worker=worker) as rig:
        rig.ingest()
        yield rig


def test_recorded_requests_are_answered_or_refused_with_a_reason(roomy: Rig) -> None:
    says(roomy, f"Let me look. {OSLO}")
    answered, refused, warned = Counter[str](), Counter[str](), set[str]()
    for record in recorded_requests():
        if not record["path"].startswith("/v1/messages"):
            continue
        client, body = record["client"], record["body"]
        reply = roomy.http.post(record["path"], json=body)
        if reply.status_code != 200:
            error = reply.json()["error"]
            assert reply.status_code in (400, 404), reply.text
            assert len(error["message"]) > len(error["param"]) + 20
            refused[error["param"]] += 1
            continue
        answered[client] += 1
        if body.get("stream"):
            events = [
                json.loads(line[6:]) for line in reply.text.splitlines() if line[:6] == "data: "
            ]
            assert events[0]["message"].keys() == MESSAGE | {"kvstitch"}
            assert events[-1] == {"type": "message_stop"} and events[-2]["delta"]["stop_reason"]
            warned |= set(events[-2]["kvstitch"]["warnings"])
        elif record["path"].endswith("count_tokens"):
            assert reply.json().keys() == {"input_tokens"}
        else:
            assert reply.json().keys() == MESSAGE | {"kvstitch"} and reply.json()["stop_reason"]
            warned |= set(reply.json()["kvstitch"]["warnings"])
    assert answered["Claude Code"] >= 8 and answered["anthropic"] >= 20, answered
    assert dict(refused) == REFUSED
    names = {text.partition(" has no effect: ")[0].partition("[")[0] for text in warned}
    assert names >= {"thinking", "context_management", "metadata", "output_config.effort"}


@pytest.mark.slow
def test_the_package_itself(roomy: Rig) -> None:
    """It holds every answer to its own types, and puts streams together."""
    if not ANTHROPIC.is_file():
        pytest.skip("the package is not installed: scripts/install-clients.sh")
    command: list[Any] = [ANTHROPIC, HERE / "anthropic_requests.py", roomy.url]
    for what, answer in (("form", '{"animal": "goat"}'), ("call", f"Let me look. {OSLO}")):
        says(roomy, answer)
        done = subprocess.run([*command, what], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        said = {
            name: (status, body) for name, status, body in map(json.loads, done.stdout.splitlines())
        }
        assert {name for name, (status, _) in said.items() if status != 200} == {"picture", "model"}
        assert said["model"][1]["error"]["type"] == "not_found_error"
        if what == "call":
            for name in ("tool_any", "stream_tool"):
                content = said[name][1]["content"]
                assert content[-1]["input"] == {"city": "Oslo"} and said[name][1]["id"]
            assert said["count"][1]["input_tokens"] > 10
        else:
            assert said["parse"][1]["content"][0]["text"] == '{"animal": "goat"}'
