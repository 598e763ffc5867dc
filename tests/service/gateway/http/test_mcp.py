"""/mcp and `kvstitch mcp`, asked by the official client over both transports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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

from service.messages.replies import Failed
from service.messages.requests import Generate
from tests.fakes.worker import FakeWorker
from tests.ports import free_port
from tests.service.gateway.mcp_calls import mcp_call
from tests.service.gateway.rig import DOCUMENTS, Rig, running, until

Connect = Callable[..., AbstractAsyncContextManager[Client]]
ENDS_S = 240.0  # how long a busy machine may take to start a process that loads the SDK


def command(url: str) -> list[str]:
    return [sys.executable, "-m", "service.cli", "mcp", "--url", url]


def environment(key: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")}
    return {**kept, **({"KVSTITCH_API_KEY": key} if key else {})}


@asynccontextmanager
async def over_http(url: str, key: str = "", mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=ENDS_S) as http,
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


@pytest.fixture
def locked(folder: Path, data: Path, create: Callable[..., str]) -> Iterator[Rig]:
    """A service with keys and three documents; its own client has one that may do anything."""
    with running(folder, data, worker=FakeWorker("")) as rig:
        rig.http.headers["Authorization"] = f"Bearer {create()}"
        rig.ingest()
        yield rig


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


async def test_the_tools(shared: Rig, connect: Connect) -> None:
    async with connect(shared.url) as client:
        assert "cites" in (client.instructions or "")
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == ["search", "ask", "documents"]
        assert listed["ask"].input_schema["required"] == ["question"]

        found = await called(client, "search", query="capital of Norway", top_k=2)
        first = found["passages"][0]
        assert first["doc_id"] == "oslo" and first["text"] == DOCUMENTS[0]["text"]
        body = {"query": "capital of Norway", "top_k": 2}
        route = shared.http.post("/v1/search", json=body).json()
        assert [(p["doc_id"], p["score"]) for p in found["passages"]] == [
            (p["doc_id"], p["score"]) for p in route["results"]
        ]

        answer = await called(client, "ask", question="Norway's capital?", documents=["oslo"])
        asked = {"question": "Norway's capital?", "documents": ["oslo"], "cite": "marks"}
        assert answer["answer"] == shared.http.post("/v1/rag/generate", json=asked).json()["text"]
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


async def test_errors_are_those_of_the_service(locked: Rig, connect_http: Connect) -> None:
    assert locked.worker is not None
    locked.worker.refuse = Failed("", "overloaded", "no room for this one")
    key = locked.http.headers["Authorization"].removeprefix("Bearer ")
    async with connect_http(locked.url, key) as client:
        assert "no document 'nothing'" in await refused(client, "documents", doc_id="nothing")
        assert "query: required" in await refused(client, "search")
        assert "known are: collection" in await refused(client, "search", query="x", k=3)
        assert "filter.year.near: there is no such operator" in await refused(
            client, "search", query="x", filter={"year": {"near": 1}}
        )
        assert await refused(client, "ask", question="x") == "no room for this one"
        with pytest.raises(MCPError, match="no tool 'delete', only search, ask, documents"):
            await client.call_tool("delete", {})


async def test_a_key_s_scopes(
    locked: Rig, create: Callable[..., str], connect_http: Connect
) -> None:
    key = create("--scope", "generate")
    async with connect_http(locked.url, key) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "ask"]
        assert (await called(client, "search", query="Norway"))["passages"]
        message = await refused(client, "documents")
        assert "lacks the scope 'admin'" in message


def hide(rig: Rig) -> None:
    rig.ingest(
        [
            {"doc_id": "pay", "text": "The capital of the fund is nine.", "readers": ["hr"]},
            {"doc_id": "foreign", "text": "The capital is Paris.", "collection": "other"},
        ]
    )


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


async def test_what_a_key_may_not_read_is_in_no_tool(
    locked: Rig, create: Callable[..., str], connect_http: Connect
) -> None:
    hide(locked)
    async with connect_http(locked.url, create("--group", "hr")) as client:
        assert "pay" in (read := await seen(client)) and "nine" in read
    async with connect_http(locked.url, create("--group", "sales")) as client:
        hidden = await seen(client)
        assert "pay" not in hidden and "nine" not in hidden and "Norway" in hidden
    async with connect_http(locked.url, create("--tenant", "red")) as client:
        foreign = await seen(client)
        assert "nine" not in foreign and "Norway" not in foreign


async def test_what_a_key_may_not_read_does_not_come_over_stdio(
    locked: Rig, create: Callable[..., str]
) -> None:
    hide(locked)
    async with over_stdio(locked.url, create("--group", "sales")) as client:
        hidden = await seen(client)
        assert "pay" not in hidden and "nine" not in hidden and "Norway" in hidden


async def test_no_key_no_tools(locked: Rig) -> None:
    for key in ("", "kvs_wrong"):
        with pytest.raises((MCPError, ExceptionGroup)):
            async with over_http(locked.url, key) as client:
                await client.list_tools()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        sent = mcp_call("search", {"query": "x"})
        reply = httpx.post(
            f"{locked.url}/mcp", json=sent["json"], headers=sent["headers"] | headers
        )
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
    done = subprocess.run(
        command(locked.url), env=environment("kvs_wrong"), capture_output=True, text=True,
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


async def test_a_cancelled_call_ends_its_answer(folder: Path, data: Path, connect: Connect) -> None:
    worker = FakeWorker("", token_delay_s=0.05)
    with running(folder, data, worker=worker) as rig:
        rig.ingest()
        async with connect(rig.url) as client:
            assert await called(client, "search", query="Norway")
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "ask", {"question": "?", "max_tokens": 1000})
                with anyio.fail_after(ENDS_S):
                    while not worker.seen(Generate):
                        await anyio.sleep(0.02)
                assert not worker.aborted
                group.cancel_scope.cancel()
            with anyio.fail_after(ENDS_S):
                while not (worker.aborted and rig.gateway.limiter.in_flight == 0):
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


def begin_session(rig: Rig, key: str) -> dict[str, str]:
    """Headers of requests in a session, as clients of revision 2025-06-18 have it."""
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {key}",
    }
    params = {"protocolVersion": "2025-06-18", "capabilities": {},
              "clientInfo": {"name": "test", "version": "1"}}  # fmt: skip
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    reply = rig.http.post("/mcp", json=begin, headers=headers)
    assert reply.status_code == 200, reply.text
    headers |= {"MCP-Protocol-Version": "2025-06-18"}
    headers |= {"Mcp-Session-Id": reply.headers["mcp-session-id"]}
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert rig.http.post("/mcp", json=begun, headers=headers).status_code == 202
    return headers


def test_a_session_is_that_of_the_key_that_began_it(
    locked: Rig, create: Callable[..., str]
) -> None:
    owner, thief = create(), create("--tenant", "red")
    session = begin_session(locked, owner)
    lists = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    stolen = {**session, "Authorization": f"Bearer {thief}"}
    assert locked.http.post("/mcp", json=lists, headers=stolen).status_code == 404
    assert locked.http.delete("/mcp", headers=stolen).status_code == 404
    assert "documents" in locked.http.post("/mcp", json=lists, headers=session).text
    assert locked.http.delete("/mcp", headers=session).status_code == 200
    assert locked.http.post("/mcp", json=lists, headers=session).status_code == 404
    begin_session(locked, owner)  # stays open: the service ends nevertheless


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


def test_bodies_are_bounded(shared: Rig) -> None:
    limit = shared.gateway.settings.max_body_values
    many = mcp_call("search", {"query": "x", "documents": ["a"] * (limit + 1)})
    reply = shared.http.post("/mcp", **many)
    assert reply.status_code == 413 and reply.json()["code"] == "body_too_large"
    deep = mcp_call("search", {})
    content = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 50_000
    sent = {**deep["headers"], "Content-Type": "application/json"}
    assert shared.http.post("/mcp", content=content, headers=sent).status_code == 400
    assert shared.http.get("/mcp").status_code == 405
    foreign = {**deep["headers"], "Origin": "https://elsewhere.example"}
    assert shared.http.post("/mcp", json=deep["json"], headers=foreign).status_code == 403


def test_requests_are_counted_as_those_of_the_routes(
    locked: Rig, create: Callable[..., str]
) -> None:
    key = create("--requests-per-minute", "2")
    replies = []
    for _ in range(3):
        sent = mcp_call("search", {"query": "Norway"})
        sent["headers"]["Authorization"] = f"Bearer {key}"
        replies.append(locked.http.post("/mcp", **sent).json()["result"])
    assert [reply["isError"] for reply in replies] == [False, False, True]
    assert "requests_per_minute of this key is 2" in replies[2]["content"][0]["text"]
    until(
        lambda: locked.metric("kvstitch_http_responses_total", route="/mcp", status="200"),
        "counted",
    )


def test_a_service_that_was_installed_without_it_says_so(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "from pathlib import Path\n"
        "from fastapi.testclient import TestClient\n"
        "from service.gateway.app import create_app\n"
        "from service.gateway.composition import Gateway\n"
        "from service.settings import load\n"
        "from tests.fakes.models import HashingEmbedder\n"
        "folder, data = map(Path, sys.argv[1:])\n"
        "gateway = Gateway(load(model=str(folder), data_dir=data, allow_anonymous=True), folder,\n"
        "                  embedder=HashingEmbedder())\n"
        "http = TestClient(create_app(gateway), 'http://localhost')\n"
        "print(http.post('/mcp', json={}).text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder), str(tmp_path / "data")],
        capture_output=True, text=True, timeout=ENDS_S,
    )  # fmt: skip
    assert "pip install 'kvstitch[mcp]'" in done.stdout, done.stderr
    command = [sys.executable, "-c", "import sys; sys.modules['mcp'] = None\n"
               "from service.cli import main; sys.exit(main(['mcp']))"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S)
    assert done.returncode == 1 and "pip install 'kvstitch[mcp]'" in done.stderr, done.stderr
