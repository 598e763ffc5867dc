"""The command line against a running service with a fake worker."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvstitch.client import Client
from kvstitch.records.answers import Attribution
from kvstitch.service.cli import answer_tables, main
from kvstitch.service.cli.output import console, plain
from kvstitch.service.gateway.service_database import jobs_database
from kvstitch.service.settings import demo_model
from tests.ports import free_port
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]


def test_ask_status(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.ingest()
    url = ["--url", rig.url]
    asked = ["ask", "Where is Oslo?", "--ratio", "0.3", "--top-k", "2", *url]
    assert main([*asked, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "[1]" in out and "Oslo (oslo)" in out and "memory" in out
    assert "TTFT" in out and "TPOT" in out and "question_scout" in out
    assert main(asked) == 0
    short = capsys.readouterr().out
    assert "Oslo (oslo)" in short and "s to the first token" in short
    assert not {"memory", "TPOT", "tier"} & set(short.split())
    assert main(["ask", "Where is Oslo?", "--json", "--document", "rome", *url]) == 0
    assert json.loads(capsys.readouterr().out)["citations"][0]["doc_id"] == "rome"
    assert main(["status", *url]) == 0
    assert "3 documents, 3 chunks" in capsys.readouterr().out
    assert main(["status", "--json", *url]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "ready"


def test_the_answer_comes_first(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """Its text with marks, then a line a source: passages of one document are told apart."""
    rig.ingest()
    with Client(rig.url) as service:
        answer = service.generate("Where is Oslo?", top_k=3, include_text=True)
    places = [("Ferries", None), ("Ferries", None), (None, "4")]
    cited = [
        replace(
            each,
            doc_id="guide",
            title="Norway",
            heading=heading,
            page=page,
            used=False,
            quote_start=None,
        )
        for each, (heading, page) in zip(answer.citations, places, strict=True)
    ]
    start = cited[1].char_start
    cited[1] = replace(cited[1], used=True, quote_start=start, quote_end=start + 6)
    inside = "of them.\n## Trains\nThey go."
    at = cited[2].char_start + inside.index("They")
    end = cited[2].char_start + len(inside)
    cited[2] = replace(
        cited[2], text=inside, char_end=end, used=True, quote_start=at, quote_end=at + 8
    )
    sentences = [
        Attribution(start=0, end=14, citations=[2], score=1.0, by="words"),
        Attribution(start=15, end=24, citations=[], score=0.0, by="words"),
    ]
    told = replace(answer, text="It is in Oslo. Who knows?", attributions=sentences)
    answer_tables.show_answer(console(), replace(told, citations=cited), verbose=False)
    lines = capsys.readouterr().out.splitlines()
    text = cited[1].text
    assert text is not None and lines[0] == "It is in Oslo [2]. Who knows?"
    assert [line.rstrip() for line in lines[2:5]] == [
        f"  [1] Norway (guide) > Ferries characters {cited[0].char_start}-{cited[0].char_end}",
        f'* [2] > Ferries characters {start}-{cited[1].char_end}: "{text[:6]}"',
        '* [3] > Trains, page 4: "They go."',
    ]
    assert lines[6].endswith("s in all")
    raw = rig.ask().json()
    assert "full prefill's from" not in answer_tables.facts(raw)
    raw["cache"]["exact_from"] = 3
    assert "full prefill's from token 4" in answer_tables.facts(raw)


def test_every_event_as_a_line(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.ingest()
    assert main(["ask", "Where?", "--json", "--stream", "--url", rig.url]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [line["event"] for line in found]
    assert names[0] == "sources" and names[-1] == "done" and "token" in names
    text = "".join(line["data"]["text"] for line in found if line["event"] == "token")
    assert text == found[-1]["data"]["text"]


def test_errors_are_one_readable_line(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", rig.url]
    assert main(["ask", "x", "--method", "magic", *url]) == 2
    assert "known methods: a3, pie, question_scout, vanilla (HTTP 422)" in capsys.readouterr().err
    assert main(["ask", "x", "--filter", "year", *url]) == 2
    assert "write NAME=VALUE" in capsys.readouterr().err
    assert main(["ask", "x", "--compare", "magic", *url]) == 2
    assert "known methods: exact, balanced, fastest, a3, pie" in capsys.readouterr().err
    assert main(["ask", "half of \ud800", *url]) == 2
    assert "not valid UTF-8" in capsys.readouterr().err


def test_errors_of_scripts_are_objects(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "x", "--method", "magic", "--json", "--url", rig.url]) == 2
    found = capsys.readouterr()
    error = json.loads(found.err)["error"]
    assert found.out == "" and error["field"] == "fusion.method"
    assert error["code"] == "unknown_method"


def test_what_answers_is_no_kvstitch(capsys: pytest.CaptureFixture[str]) -> None:
    class Greeting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>hello</h1>")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert main(["status", "--url", f"http://127.0.0.1:{server.server_port}"]) == 1
        assert "is the address right?" in capsys.readouterr().err
        server.shutdown()


def test_text_of_documents_cannot_steer_the_terminal() -> None:
    assert plain("a\x1b[2Jb\ud800\n") == "a\ufffd[2Jb\ufffd\n"


def test_unreachable_service(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ask", "x"], ["status"], ["jobs"], ["documents"]):
        assert main([*command, "--url", f"http://127.0.0.1:{free_port()}"]) == 1
        assert "kvstitch serve" in capsys.readouterr().err
    assert main(["status", "--url", "no url"]) == 2
    assert "kvstitch: " in capsys.readouterr().err


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvstitch.service.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_serve_says_what_is_wrong(folder: Path, data: Path) -> None:
    wrong = serve("--port", "99999")
    assert wrong.returncode == 2 and "KVSTITCH_PORT" in wrong.stderr
    missing = serve("--model", str(data))
    assert missing.returncode == 3 and "no config.json" in missing.stderr
    assert "Traceback" not in wrong.stderr + missing.stderr


def test_port_in_use(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = serve("--data-dir", str(data / "d"), "--port", port)
    assert found.returncode == 3 and "give another --port" in found.stderr
    assert "Traceback" not in found.stderr


def last_line(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 3, found.stderr
    assert "Traceback" not in found.stderr
    return found.stderr.strip().splitlines()[-1]


def test_a_model_that_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    """Before a worker is started, which would die of it again and again."""
    copy = tmp_path / "model"
    shutil.copytree(demo_model(), copy)
    options = ("--model", str(copy), "--data-dir", str(tmp_path / "data"), "--port", "0")
    config = json.loads((copy / "config.json").read_text())
    for family in ("gpt2", "mamba"):
        (copy / "config.json").write_text(json.dumps({**config, "model_type": family}))
        assert f"model_type {family}" in last_line(serve(*options))
    (copy / "config.json").write_text(json.dumps(config))
    (weights,) = copy.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    said = last_line(serve(*options))
    assert "is damaged" in said and "copy the file again" in said


def test_a_job_store_that_cannot_be_used_is_named_in_the_last_line(data: Path) -> None:
    options = ("--data-dir", str(data), "--port", "0")
    made = jobs_database(data / "jobs.sqlite3")
    made.start()
    made.close()
    with sqlite3.connect(data / "jobs.sqlite3") as newer:
        newer.execute("UPDATE alembic_version SET version_num = 'jobs_99'")
    said = last_line(serve(*options))
    assert "jobs.sqlite3 has schema revision jobs_99" in said and "--data-dir" in said
    (data / "jobs.sqlite3").write_bytes(b"no database " * 1000)
    said = last_line(serve(*options))
    assert "jobs.sqlite3 cannot be used" in said and "restore it" in said


def test_keys_are_not_made_where_no_service_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in (["create"], ["list"], ["revoke", "abc"]):
        assert main(["keys", *action, "--data-dir", str(tmp_path / "typo")]) == 2
        assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_a_collection_that_is_not_there_is_said_to_be(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.ingest()
    url = ["--url", rig.url]
    assert main(["ask", "Where?", "--collection", "nope", "--json", *url]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "there is no collection 'nope'" in warning
