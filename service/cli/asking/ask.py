"""`kvstitch ask`: streams an answer, then shows its sources and what it cost."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import httpx

from service.cli.asking import answer_tables
from service.cli.asking.compare import compare
from service.cli.name_value import parse_pairs
from service.cli.output import console, emit, emit_line, plain
from service.cli.service_client import CommandError, checked, client, events

PATH = "/v1/rag/generate"


def run(args: argparse.Namespace) -> int:
    """Ask one question; 1 if a method of --compare failed."""
    body = _body(args)
    with client(args) as http:
        if args.compare is not None:
            return compare(http, body, args.compare, args.ratio, as_json=args.json)
        if args.method is not None:
            body["fusion"] = {"method": args.method}
        if args.quality is not None:
            body.setdefault("fusion", {"method": "auto"})["quality"] = args.quality
        if args.ratio is not None:
            body.setdefault("fusion", _default_method(http))["ratio"] = args.ratio
        if args.explain:
            return _explain(http, body, as_json=args.json)
        if args.json and not args.stream:
            emit(checked(http.post(PATH, json=body)))
            return 0
        return _stream(http, body, as_json=args.json)


def _default_method(http: httpx.Client) -> dict[str, Any]:
    """What the service uses where no method is named."""
    return dict(checked(http.get("/v1/methods"))["defaults"]["fusion"])


def _body(args: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "question": args.question,
        "top_k": args.top_k,
        "documents": args.document,
        "max_tokens": args.max_tokens,
        "collection": args.collection,
        "retrieval": args.retrieval,
        "adapter": args.adapter,
        "cold": args.cold,
        "prefix_cache": args.prefix_cache,
        "profile": args.profile,
        "filter": parse_pairs(args.filter, "--filter") or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _explain(http: httpx.Client, body: dict[str, Any], *, as_json: bool) -> int:
    result = checked(http.post(PATH, json={**body, "explain": True}))
    if as_json:
        emit(result)
    else:
        answer_tables.show_forecast(console(), result)
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
                answer_tables.show_result(console(), data)
            if event == "done":
                return 0
    raise CommandError("the stream ended without a result")
