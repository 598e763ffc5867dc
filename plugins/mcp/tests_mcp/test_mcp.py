"""/mcp and `kvstitch mcp`, asked by the official client over both transports."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from kvstitch.service.cli import main
from kvstitch.service.messages.replies import Failed
from kvstitch.service.messages.requests import Generate
from kvstitch.service.plugins import VARIABLE
from tests.fakes.worker import FakeWorker
from tests.ports import free_port
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import DOCUMENTS, Rig, running, until
from tests_mcp.calls import mcp_call

Connect = Callable[..., AbstractAsyncContextManager[Client]]
ENDS_S = 240.0  # how long a busy machine may take to start a process that loads the SDK


def command(url: str) -> list[str]:
    return [sys.executable, "-m", "kvstitch.service.cli", "mcp", "--url", url]


def environment(key: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k == VARIABLE or not k.startswith("KVSTITCH_")}
    return {**kept, **({"KVSTITCH_API_KEY": key} if key else {})}


@asynccontextmanager
async def over_http(url: str, key: str = "", mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=bearer(key) if key else {}, timeout=ENDS_S) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_http_with_a_session(url: str, key: str = "") -> AsyncIterator[Client]:
    async with over_http(url, key, "legacy") as client:
        yield client


@asynccontextmanager
async def over_stdio(url: str, key: str = "") -> AsyncIterator[Client]:
    program, *arguments = command(url)
    started = StdioServerParameters(command=program, args=arguments, env=environment(key))
    async with Client(stdio_client(started)) as client:
        yield client


@pytest.fixture(params=[over_http, over_http_with_a_session, over_stdio])
def connect(request: pytest.FixtureRequest) -> Connect:
    """connect(url, key): a client, by each way there is."""
    way: Connect = request.param
    return way


@pytest.fixture(params=[over_http, over_http_with_a_session])
def connect_http(request: pytest.FixtureRequest) -> Connect:
    way: Connect = request.param
    return way


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A service with keys: three documents for everybody, one for `hr`, one of another collection.
    Its own client has a key that may do anything."""
    folder = make_folder(tmp_path_factory.mktemp("service") / "model")
    data = Path(tempfile.mkdtemp(prefix="kv-"))
    hidden: list[dict[str, Any]] = [
        {"doc_id": "pay", "text": "The capital of the fund is nine.", "readers": ["hr"]},
        {"doc_id": "foreign", "text": "The capital is Paris.", "collection": "other"},
    ]
    with running(folder, data, worker=FakeWorker(""), max_sessions_per_key=8) as rig:
        rig.http.headers["Authorization"] = f"Bearer {create(rig)}"
        rig.ingest([*DOCUMENTS, *hidden])
        yield rig
    shutil.rmtree(data, ignore_errors=True)


def create(rig: Rig, *arguments: str) -> str:
    """A key of a service, made as an operator makes it."""
    folder = str(rig.gateway.settings.data_dir)
    with redirect_stdout(io.StringIO()) as out:
        assert main(["keys", "create", "--data-dir", folder, *arguments]) == 0
    return out.getvalue().strip()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text_of(result)


async def test_the_tools(service: Rig, connect: Connect) -> None:
    key = create(service, "--group", "sales")
    async with connect(service.url, key) as client:
        assert "cites" in (client.instructions or "")
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == ["search", "ask", "documents"]
        assert listed["ask"].input_schema["required"] == ["question"]

        found = await called(client, "search", query="capital of Norway", top_k=2)
        first = found["passages"][0]
        assert first["doc_id"] == "oslo" and first["text"] == DOCUMENTS[0]["text"]
        body = {"query": "capital of Norway", "top_k": 2}
        route = service.http.post("/v1/search", json=body, headers=bearer(key)).json()
        assert [(p["doc_id"], p["score"]) for p in found["passages"]] == [
            (p["doc_id"], p["score"]) for p in route["results"]
        ]

        answer = await called(client, "ask", question="Norway's capital?", documents=["oslo"])
        asked = {"question": "Norway's capital?", "documents": ["oslo"], "cite": "marks"}
        route = service.http.post("/v1/rag/generate", json=asked, headers=bearer(key)).json()
        assert answer["answer"] == route["text"]
        assert "[1]" in answer["answer"] and answer["citations"][0]["used"]

        documents = await called(client, "documents", limit=2)
        assert [each["doc_id"] for each in documents["documents"]] == ["bergen", "oslo"]
        rest = await called(client, "documents", limit=2, cursor=documents["next_cursor"])
        assert [each["doc_id"] for each in rest["documents"]] == ["rome"]
        assert "next_cursor" not in rest
        part = (await called(client, "documents", doc_id="rome", max_chars=10))["document"]
        end = (await called(client, "documents", doc_id="rome", offset=10))["document"]
        assert part["next_offset"] == 10 and "next_offset" not in end
        assert part["text"] + end["text"] == DOCUMENTS[2]["text"]


async def test_errors_are_those_of_the_service(
    service: Rig, connect_http: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.worker, "refuse", Failed("", "overloaded", "no room for this one"))
    async with connect_http(service.url, create(service)) as client:
        assert "no document 'nothing'" in await refused(client, "documents", doc_id="nothing")
        assert "query: required" in await refused(client, "search")
        assert "known are: collection" in await refused(client, "search", query="x", k=3)
        assert "filter.year.near: there is no such operator" in await refused(
            client, "search", query="x", filter={"year": {"near": 1}}
        )
        assert await refused(client, "ask", question="x") == "no room for this one"
        with pytest.raises(MCPError, match="no tool 'delete', only search, ask, documents"):
            await client.call_tool("delete", {})


async def test_a_key_s_scopes(service: Rig, connect_http: Connect) -> None:
    async with connect_http(service.url, create(service, "--scope", "generate")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "ask"]
        assert (await called(client, "search", query="Norway"))["passages"]
        message = await refused(client, "documents")
        assert "lacks the scope 'admin'" in message


async def seen(client: Client) -> str:
    """All that the tools give of questions about what is hidden."""
    question = "The capital of the fund?"
    out = ""
    for arguments in ({}, {"doc_id": "pay"}, {"named": "pay"}):
        out += text_of(await client.call_tool("documents", arguments))
    for some in ({}, {"documents": ["oslo"]}):
        found = await client.call_tool("search", {"query": question, "top_k": 20, **some})
        asked = {"question": question, "top_k": 20, "max_tokens": 40, **some}
        out += text_of(found) + text_of(await client.call_tool("ask", asked))
    return out.replace("no document 'pay'", "")


async def test_what_a_key_may_not_read_is_in_no_tool(service: Rig, connect_http: Connect) -> None:
    async with connect_http(service.url, create(service, "--group", "sales")) as client:
        hidden = await seen(client)
        assert "pay" not in hidden and "nine" not in hidden and "Norway" in hidden


async def test_what_keys_may_read(service: Rig) -> None:
    async with over_http(service.url, create(service, "--group", "hr")) as client:
        assert "pay" in (read := await seen(client)) and "nine" in read
    async with over_http(service.url, create(service, "--tenant", "red")) as client:
        foreign = await seen(client)
        assert "nine" not in foreign and "Norway" not in foreign


async def test_no_key_no_tools(service: Rig) -> None:
    for key in ("", "kvs_wrong"):
        with pytest.raises((MCPError, ExceptionGroup)):
            async with over_http(service.url, key) as client:
                await client.list_tools()
        sent = mcp_call("search", {"query": "x"})
        headers = sent["headers"] | (bearer(key) if key else {})
        reply = httpx.post(f"{service.url}/mcp", json=sent["json"], headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
    done = subprocess.run(
        command(service.url), env=environment("kvs_wrong"), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=ENDS_S,
    )  # fmt: skip
    assert done.returncode == 1 and "API key is not valid" in done.stderr
    assert "HTTP 401" in done.stderr and done.stdout == ""


def test_no_service_for_the_command() -> None:
    done = subprocess.run(
        command(f"http://127.0.0.1:{free_port()}"), env=environment(""), capture_output=True,
        text=True, stdin=subprocess.DEVNULL, timeout=ENDS_S,
    )  # fmt: skip
    assert done.returncode == 1 and "does not answer" in done.stderr
    assert "kvstitch serve" in done.stderr and "Traceback" not in done.stderr


async def test_a_cancelled_call_ends_its_answer(
    service: Rig, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = service.worker
    assert worker is not None
    monkeypatch.setattr(worker, "token_delay_s", 0.05)
    worker.received.clear()
    worker.aborted.clear()
    async with connect(service.url, create(service)) as client:
        assert await called(client, "search", query="Norway")
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "ask", {"question": "?", "max_tokens": 1000})
            with anyio.fail_after(ENDS_S):
                while not worker.seen(Generate):
                    await anyio.sleep(0.02)
            assert not worker.aborted
            group.cancel_scope.cancel()
        with anyio.fail_after(ENDS_S):
            while not (worker.aborted and service.gateway.limiter.in_flight == 0):
                await anyio.sleep(0.02)
        assert await called(client, "search", query="Norway"), "the connection goes on"


async def test_the_command_outlives_the_service(folder: Path, data: Path) -> None:
    port = free_port()

    def rig() -> Any:
        return running(folder, data, port=port)

    with rig() as first:
        first.ingest()
        url = first.url
        program, *arguments = command(url)
        started = StdioServerParameters(command=program, args=arguments, env=environment(""))
        async with Client(stdio_client(started)) as client:
            assert await called(client, "search", query="Norway")
            await anyio.to_thread.run_sync(first.stop)
            assert "does not answer" in await refused(client, "search", query="Norway")
            with rig():
                assert await called(client, "search", query="Norway")


def initialize(rig: Rig, key: str) -> httpx.Response:
    """What begins a session, as clients of revision 2025-06-18 send it."""
    headers = {"Accept": "application/json, text/event-stream", **bearer(key)}
    params = {"protocolVersion": "2025-06-18", "capabilities": {},
              "clientInfo": {"name": "test", "version": "1"}}  # fmt: skip
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return rig.http.post("/mcp", json=begin, headers=headers)


def begin_session(rig: Rig, key: str) -> dict[str, str]:
    """Headers of requests in a session."""
    reply = initialize(rig, key)
    assert reply.status_code == 200, reply.text
    headers = {"Accept": "application/json, text/event-stream", **bearer(key)}
    headers |= {"MCP-Protocol-Version": "2025-06-18"}
    headers |= {"Mcp-Session-Id": reply.headers["mcp-session-id"]}
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert rig.http.post("/mcp", json=begun, headers=headers).status_code == 202
    return headers


def test_a_session_is_that_of_the_key_that_began_it(service: Rig) -> None:
    owner, thief = create(service), create(service, "--tenant", "red")
    session = begin_session(service, owner)
    lists = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    stolen = session | bearer(thief)
    assert service.http.post("/mcp", json=lists, headers=stolen).status_code == 404
    assert service.http.delete("/mcp", headers=stolen).status_code == 404
    assert "documents" in service.http.post("/mcp", json=lists, headers=session).text
    assert service.http.delete("/mcp", headers=session).status_code == 200
    assert service.http.post("/mcp", json=lists, headers=session).status_code == 404
    begin_session(service, owner)  # stays open: the service ends nevertheless


def test_a_key_has_so_many_sessions(service: Rig) -> None:
    """Nobody has to end them: those of one key are bounded, and others have their own."""
    owner, other = create(service), create(service)
    sessions = [begin_session(service, owner) for _ in range(8)]
    for _ in range(3):
        refused = initialize(service, owner)
        assert refused.status_code == 429 and "Retry-After" in refused.headers
        assert refused.json()["field"] == "sessions_per_key"
    begin_session(service, other)
    assert service.http.delete("/mcp", headers=sessions[0]).status_code == 200
    begin_session(service, owner)
    assert initialize(service, owner).status_code == 429
    for session in sessions[1:]:
        assert service.http.delete("/mcp", headers=session).status_code == 200


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_gateways_that_share_a_database_have_no_sessions(rig: Rig) -> None:
    rig.ingest()
    params = {"name": "search", "arguments": {"query": "Norway"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"
    }  # fmt: skip
    reply = rig.http.post("/mcp", json=call, headers=headers)
    assert "fjord" in reply.text and "mcp-session-id" not in reply.headers


def test_bodies_are_bounded(service: Rig) -> None:
    limit = service.gateway.settings.max_body_values
    many = mcp_call("search", {"query": "x", "documents": ["a"] * (limit + 1)})
    reply = service.http.post("/mcp", **many)
    assert reply.status_code == 413 and reply.json()["code"] == "body_too_large"
    deep = mcp_call("search", {})
    content = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 50_000
    sent = {**deep["headers"], "Content-Type": "application/json"}
    assert service.http.post("/mcp", content=content, headers=sent).status_code == 400
    assert service.http.get("/mcp").status_code == 405
    foreign = {**deep["headers"], "Origin": "https://elsewhere.example"}
    assert service.http.post("/mcp", json=deep["json"], headers=foreign).status_code == 403


def test_requests_are_counted_as_those_of_the_routes(service: Rig) -> None:
    key = create(service, "--requests-per-minute", "2")
    replies = []
    for _ in range(3):
        sent = mcp_call("search", {"query": "Norway"})
        sent["headers"] |= bearer(key)
        replies.append(service.http.post("/mcp", **sent).json()["result"])
    assert [reply["isError"] for reply in replies] == [False, False, True]
    assert "requests_per_minute of this key is 2" in replies[2]["content"][0]["text"]
    until(
        lambda: service.metric("kvstitch_http_responses_total", route="/mcp", status="200"),
        "counted",
    )
