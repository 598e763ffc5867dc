"""Records what clients send, in tests/data/recorded_clients.jsonl.xz: `python -m
scripts.record_clients`.

Clients run as they are, with `http://…/CLIENT/WHAT/v1` for an address, against a recorder that
hands their requests on to a service. Codex, whose package is too large to be installed for tests,
runs where CODEX_FOLDER names a folder with its node_modules, Claude Code where CLAUDE_FOLDER does;
they get scripted answers first that call tools, so that what they send back is recorded as well.
Long texts are cut, ids that change with each run too, and equal requests kept once. Requests of
clients that did not run stay.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.clients.conftest import DOCUMENTS, NODE_MODULES, PYTHON, ROOT, SCRIPTS
from tests.e2e.models import DEMO
from tests.e2e.service import Service

HERE = Path(__file__).parent
FILE = ROOT / "tests" / "data" / "recorded_clients.jsonl.xz"
MAX_TEXT_CHARS = 160
DIFY = ROOT / "build" / "clients-dify" / "bin" / "python"
CODEX = Path(os.environ.get("CODEX_FOLDER", "nowhere")) / "node_modules"
ANTHROPIC = ROOT / "build" / "clients-anthropic" / "bin" / "python"
CLAUDE = Path(os.environ.get("CLAUDE_FOLDER", "nowhere")) / "node_modules"
RUN_S = 600.0
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_EXEC = {"cmd": "echo hello"}
_PATCH = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch\n"
CODEX_RUNS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "effort": ("-c", "model_reasoning_effort=high", "-c", "model_verbosity=low"),
    "schema": ("--output-schema", "SCHEMA"),
    "model": ("-m", "gpt-5.1-codex"),
    "command": (),
    "patch": ("-m", "gpt-5.1-codex"),
    "plan": (),
    "picture": ("-i", "PICTURE"),
    "unknown": (),
}


class Recorder:
    """Hands requests on to `target`, and keeps them; `scripted`: answers to be given first."""

    def __init__(self, target: str) -> None:
        self.records: list[dict[str, Any]] = []
        self.scripted: list[bytes] = []
        self._target = target
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                recorder._answer(self, None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                recorder._answer(self, self.rfile.read(length))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Recorder]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        _, client, what, rest = handler.path.split("/", 3)
        record: dict[str, Any] = {"client": client.replace("_", " "), "what": what}
        record["path"] = "/" + rest.partition("?")[0]
        if body is not None:
            record["body"] = compact(json.loads(body))
        if not any(same(record, each) for each in self.records):
            self.records.append(record)
        if body is not None and self.scripted:
            status, kind, content = 200, "text/event-stream", self.scripted.pop(0)
        else:
            sent = {"content-type": "application/json"}
            url = f"{self._target}/{rest}"
            reply = httpx.request(handler.command, url, content=body, headers=sent, timeout=RUN_S)
            status, content = reply.status_code, reply.content
            kind = reply.headers["content-type"]
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


_GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
SCRIPTED: dict[str, list[tuple[str, Any, str]]] = {
    "command": [("exec_command", _EXEC, "function_call")],
    "patch": [("apply_patch", _PATCH, "custom_tool_call")],
    "plan": [("update_plan", {"plan": [{"step": "a", "status": "pending"}]}, "function_call"),
             ("get_goal", {}, "function_call")],
    "unknown": [("nobody", {}, "function_call")],
}  # fmt: skip


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("client", "path", "body"))


def compact(value: Any) -> Any:
    """Cut long texts; names of this machine go with them."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [compact(item) for item in value]
    if isinstance(value, str):
        value = value.replace(str(ROOT), "/project").replace(tempfile.gettempdir(), "/t")
        value = _ID.sub("00000000-0000-0000-0000-000000000000", value)
        return value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + "…"
    return value


def calling(name: str, arguments: Any, kind: str) -> bytes:
    """Return the events of a response that calls one tool."""
    item: dict[str, Any] = {"type": kind, "id": "fc_1", "call_id": "call_1", "name": name}
    called = {"arguments": json.dumps(arguments)}
    item |= called if kind == "function_call" else {"input": arguments}
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18,
             "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**response, "usage": usage}},
    ]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


def using(name: str, arguments: dict[str, Any]) -> bytes:
    """Return the events of a message that uses one tool."""
    usage = {"input_tokens": 9, "output_tokens": 9}
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": usage},
        {"type": "message_stop"},
    ]  # fmt: skip
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


CLAUDE_RUNS: dict[str, list[bytes]] = {
    "plain": [],
    "read": [using("Read", {"file_path": "/etc/hostname"})],
    "command": [using("Bash", {"command": "echo hello", "description": "Says hello"})],
    "unknown": [using("Nobody", {})],
}


def run_claude(recorder: Recorder, what: str, scripted: list[bytes]) -> None:
    """Ask Claude Code one question, in an empty home."""
    recorder.scripted = list(scripted)
    with tempfile.TemporaryDirectory() as home:
        program = CLAUDE / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
        asked = ["-p", "Which animal does Quentin Bruvik keep?", "--max-turns", "3"]
        run([str(program), *asked], HOME=home, ANTHROPIC_API_KEY="none",
            ANTHROPIC_BASE_URL=f"{recorder.url}/Claude_Code/{what}", ANTHROPIC_MODEL="demo_model",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")  # fmt: skip
    recorder.scripted = []


def run(command: list[str], **environment: str) -> None:
    """Run a client; that one of its requests was refused may fail it, and is recorded as well."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    shown = {**kept, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1",
             "LITELLM_LOCAL_MODEL_COST_MAP": "True", **environment}  # fmt: skip
    done = subprocess.run(command, env=shown, timeout=RUN_S, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    print(command[-1][:60], done.returncode, done.stderr.strip()[-1500:], file=sys.stderr)


def run_codex(recorder: Recorder, what: str, options: tuple[str, ...]) -> None:
    """Ask the command line one question; its settings and what it reads lie in a folder."""
    recorder.scripted = [calling(*call) for call in SCRIPTED.get(what, ())]
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "schema").write_text('{"type": "object", "additionalProperties": false,'
                                           '"properties": {}, "required": []}')  # fmt: skip
        (Path(home) / "a.gif").write_bytes(base64.b64decode(_GIF))
        given = {"SCHEMA": f"{home}/schema", "PICTURE": f"{home}/a.gif"}
        provider = f'{{name="kv",base_url="{recorder.url}/Codex/{what}/v1",wire_api="responses"}}'
        command = [str(CODEX / ".bin" / "codex"), "exec", "--skip-git-repo-check", "-C", home]
        command += ["-s", "read-only", "-c", "model_provider=kv"]
        command += [] if "-m" in options else ["-m", "demo_model"]
        command += ["-c", f"model_providers.kv={provider}"]
        asked = ["--", "Which animal does Quentin Bruvik keep?"]
        run([*command, *(given.get(one, one) for one in options), *asked], CODEX_HOME=home)
        if what == "plain":
            script = CODEX.parent / "codex_sdk.mjs"
            shutil.copyfile(HERE / script.name, script)
            run(["node", str(script), f"{recorder.url}/Codex_SDK/plain/v1", home], CODEX_HOME=home)
    recorder.scripted = []


def main() -> None:
    folder = tempfile.TemporaryDirectory()
    with folder, Service(DEMO, Path(folder.name) / "data") as service:
        service.ingest(DOCUMENTS)
        with Recorder(str(service.http.base_url).rstrip("/")).running() as recorder:
            for what, options in CODEX_RUNS.items() if CODEX.is_dir() else ():
                run_codex(recorder, what, options)
            for what, scripted in CLAUDE_RUNS.items() if CLAUDE.is_dir() else ():
                run_claude(recorder, what, scripted)
            if ANTHROPIC.is_file():
                asks = str(HERE / "anthropic_requests.py")
                run([str(ANTHROPIC), asks, f"{recorder.url}/anthropic"])
            if (node := shutil.which("node")) and NODE_MODULES.is_dir():
                script = NODE_MODULES.parent / "openai_node.mjs"
                shutil.copyfile(SCRIPTS / script.name, script)
                run([node, str(script), f"{recorder.url}/openai_for_Node/all/v1"])
            for python, name in ((PYTHON, "many_requests.py"), (DIFY, "dify_requests.py")):
                if python.is_file():
                    run([str(python), "-W", "ignore", str(HERE / name), recorder.url])
            new = recorder.records
    recorded = {record["client"] for record in new}
    old = recorded_requests() if FILE.is_file() else []
    every = [*(record for record in old if record["client"] not in recorded), *new]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in every)
    FILE.write_bytes(lzma.compress(lines.encode(), preset=9))
    print(dict(Counter(record["client"] for record in every)), "in all", len(every))


def recorded_requests() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.decompress(FILE.read_bytes()).splitlines()]


if __name__ == "__main__":
    main()
