"""Documents out of a request body, in the forms people send them. Knows no corpus.

application/json       {"documents": [...]}
application/x-ndjson   one document object per line
text/*                 one document: the body is its text, ?doc_id= and ?title= name it
multipart/form-data    one document per file: the file's name is its doc_id
"""

from __future__ import annotations

import json
from email import message_from_bytes
from email.message import Message
from pathlib import PurePath
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from service.errors import InvalidRequest
from service.gateway.problems import NOT_UTF8, BadBody, Unroutable, from_validation, not_utf8
from service.gateway.schemas import PrecomputeRequest

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")

# For OpenAPI: the body is read here and not by FastAPI, which takes one media type per route.
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["documents"],
                    "properties": {
                        "documents": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["doc_id", "text"],
                                "properties": {
                                    "doc_id": {"type": "string"},
                                    "text": {"type": "string"},
                                    "title": {"type": "string"},
                                    "metadata": {"type": "object"},
                                },
                            },
                        }
                    },
                }
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
            "text/plain": {"schema": {"type": "string"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


async def read_documents(request: Request) -> list[dict[str, Any]]:
    """The documents of a body as dicts of doc_id, text, title and metadata.

    Raises BadBody or InvalidRequest naming the field, BodyTooLarge, Unroutable (415).
    """
    header = request.headers.get("content-type", "application/json")
    kind = header.partition(";")[0].strip().lower()
    body = await request.body()
    if kind == "application/json":
        found = _json(body)
    elif kind in JSON_LINES:
        found = {"documents": _lines(body)}
    elif kind.startswith("text/"):
        doc_id = request.query_params.get("doc_id", "")
        if not doc_id:
            raise InvalidRequest(
                "doc_id is required: a plain text names its document with ?doc_id=…",
                field="doc_id",
            )
        title = request.query_params.get("title", "")
        found = {"documents": [{"doc_id": doc_id, "title": title, "text": _text(body, "body")}]}
    elif kind == "multipart/form-data":
        found = {"documents": _files(header, body)}
    else:
        raise Unroutable(
            415, f"{kind} cannot be ingested: send application/json, {JSON_LINES[0]}, text/plain "
            "or multipart/form-data"
        )  # fmt: skip
    return _checked(found)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    except json.JSONDecodeError as error:
        raise BadBody(
            f"the body is not valid JSON at character {error.pos}: {error.msg}", field="body"
        ) from error
    except RecursionError:
        raise BadBody("the body is nested too deeply", field="body") from None


def _lines(body: bytes) -> list[Any]:
    out = []
    for index, line in enumerate(body.split(b"\n")):
        if not line.strip():
            continue
        try:
            out.append(json.loads(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise BadBody(f"line {index + 1} {NOT_UTF8}", field=f"line {index + 1}") from error
        except (ValueError, RecursionError) as error:
            raise BadBody(
                f"line {index + 1} is not valid JSON: {error}", field=f"line {index + 1}"
            ) from error
    return out


def _files(header: str, body: bytes) -> list[Any]:
    parsed = message_from_bytes(f"Content-Type: {header}\r\n\r\n".encode() + body)
    parts = parsed.get_payload() if parsed.is_multipart() else []
    out = []
    for part in parts if isinstance(parts, list) else []:
        assert isinstance(part, Message)
        name = part.get_filename() or part.get_param("name", header="content-disposition")
        if not name:
            raise BadBody("a part of the form has no name: name each file", field="body")
        data = part.get_payload(decode=True)
        text = _text(data if isinstance(data, bytes) else b"", str(name))
        out.append({"doc_id": str(name), "title": PurePath(str(name)).stem, "text": text})
    if not out:
        raise BadBody("the form holds no file: send one per document", field="body")
    return out


def _text(data: bytes, field: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadBody(f"{field} {NOT_UTF8} (byte {error.start})", field=field) from error


def _checked(found: Any) -> list[dict[str, Any]]:
    try:
        request = PrecomputeRequest.model_validate(found)
    except ValidationError as error:
        raise from_validation(error.errors(), PrecomputeRequest) from None
    places: dict[str, int] = {}
    for index, document in enumerate(request.documents):
        first = places.setdefault(document.doc_id, index)
        if first != index:
            raise InvalidRequest(
                f"documents[{index}].doc_id {document.doc_id!r} is that of documents[{first}]: "
                "send each document once",
                field=f"documents[{index}].doc_id",
            )
        if not document.doc_id.strip():
            raise InvalidRequest(
                f"documents[{index}].doc_id is blank: name the document",
                field=f"documents[{index}].doc_id",
            )
    return [document.model_dump() for document in request.documents]
