"""Grammars that nobody can compile or follow, while others read answers.

What others lose of their speed is measured by `python -m benchmarks.hostile`; here it is that
nothing ends but what asked for them, and that nothing is left.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.hostile.grammars import KINDS, grammars
from tests.e2e.conftest import Serve
from tests.e2e.service import Service

SENT = ("two multiples", "groups in groups", "ambiguous words")
AMBIGUOUS = {"grammar": 'start: s\ns: s s s | "a" | '}


def grammar_processes(service: Service) -> list[int]:
    """Below the gateway and the worker, without those that they are forked from."""

    def children(pid: int | None) -> list[int]:
        found: list[int] = []
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, file.read_text().split())
            except OSError:
                continue
        return found

    def is_server(pid: int) -> bool:
        try:
            return b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    gateway, worker = service.gateway_pid(), service.worker_pid()
    servers = [p for p in [*children(gateway), *children(worker)] if is_server(p)]
    return [child for server in servers for child in children(server)]


@pytest.mark.slow
def test_only_those_who_sent_them_notice(serve: Serve) -> None:
    forms = [form for name, form in grammars(len(KINDS), seed=0) if name in SENT]
    with serve() as service, ThreadPoolExecutor() as threads:
        service.http.timeout = 600.0  # on a busy machine they are last
        pids = service.gateway_pid(), service.worker_pid()

        def ask(form: dict[str, object]) -> int:
            return service.post("x", top_k=0, max_tokens=8, guided=form).status_code

        asked = [threads.submit(ask, form) for form in [AMBIGUOUS, *forms]]
        other = service.ask("Tell a story.", top_k=0, max_tokens=40, ignore_eos=True)
        assert other["usage"]["completion_tokens"] == 40
        codes = [each.result() for each in asked]
        assert set(codes) <= {200, 422} and 422 in codes, codes
        again = [ask(form) for form, code in zip(forms, codes[1:], strict=True) if code == 422]
        assert set(again) == {422}
        assert service.ask("x", top_k=0, guided={"choice": ["yes", "no"]})["text"] in ("yes", "no")
        service.until(lambda: not grammar_processes(service), "processes of grammars are left")
        assert (service.gateway_pid(), service.worker_pid()) == pids
