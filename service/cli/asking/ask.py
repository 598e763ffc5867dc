"""`kvstitch ask`: streams an answer, then says where it came from and what it cost."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import httpx

from service.cli.asking import tables as ask_tables
from service.cli.asking.compare import compare
from service.cli.corpus.fields import parse_pairs
from service.cli.http import Refused, checked, client, events
from service.cli.output import console, emit, emit_line, plain

PATH = "/v1/rag/generate"


def run(given: argparse.Namespace) -> int:
    """Ask one question; 1 if a method of --compare failed."""
    body = _body(given)
    with client(given) as http:
        if given.compare is not None:
            return compare(http, body, given.compare, given.ratio, as_json=given.json)
        body["fusion"] = {"method": given.method}
        if given.ratio is not None:
            body["fusion"]["ratio"] = given.ratio
        if given.explain:
            return _explain(http, body, as_json=given.json)
        if given.json and not given.stream:
            emit(checked(http.post(PATH, json=body)))
            return 0
        return _stream(http, body, as_json=given.json)


def _body(given: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "question": given.question,
        "top_k": given.top_k,
        "documents": given.document,
        "max_tokens": given.max_tokens,
        "collection": given.collection,
        "retrieval": given.retrieval,
        "filter": parse_pairs(given.filter, "--filter") or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _explain(http: httpx.Client, body: dict[str, Any], *, as_json: bool) -> int:
    result = checked(http.post(PATH, json={**body, "explain": True}))
    if as_json:
        emit(result)
    else:
        ask_tables.show_forecast(console(), result)
    return 0


def _stream(http: httpx.Client, body: dict[str, Any], *, as_json: bool) -> int:
    with http.stream("POST", PATH, json={**body, "stream": True}) as response:
        for event, data in events(response):
            if as_json:
                emit_line({"event": event, "data": data})
            elif event == "token":
                sys.stdout.write(plain(data["text"]))
                sys.stdout.flush()
            elif event == "done":
                print()
                ask_tables.show_result(console(), data)
            if event == "done":
                return 0
    raise Refused("the stream ended without a result")
