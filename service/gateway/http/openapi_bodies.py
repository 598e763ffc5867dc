"""OpenAPI descriptions of request bodies that we read ourselves instead of FastAPI."""

from __future__ import annotations

from typing import Any, Final

from service.gateway.documents.parsing.file_kinds import KIND_OF_MEDIA_TYPE

_FILE: Final[dict[str, Any]] = {"schema": {"type": "string", "format": "binary"}}
_COLLECTION: Final = {"type": ["string", "null"], "minLength": 1, "maxLength": 128}
_DOCUMENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["doc_id", "text"],
    "additionalProperties": False,
    "properties": {
        "doc_id": {"type": "string", "minLength": 1, "maxLength": 512},
        "text": {"type": "string"},
        "title": {"type": "string", "maxLength": 2048},
        "metadata": {"type": "object"},
        "collection": _COLLECTION,
    },
}
PRECOMPUTE: Final[dict[str, Any]] = {
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in ("collection", "doc_id", "title")
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["documents"],
                    "additionalProperties": False,
                    "properties": {
                        "collection": _COLLECTION,
                        "documents": {"type": "array", "minItems": 1, "items": _DOCUMENT},
                    },
                },
                "example": {
                    "collection": "manuals",
                    "documents": [
                        {
                            "doc_id": "kettle.md",
                            "title": "Kettle",
                            "text": "The warranty of the kettle is two years.",
                            "metadata": {"year": 2024},
                        }
                    ],
                },
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
            "text/plain": {"schema": {"type": "string"}},
            **{media: _FILE for media in KIND_OF_MEDIA_TYPE},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "collection": {"type": "string"},
                        "metadata": {"type": "string"},
                        "file": {"type": "string", "format": "binary"},
                    },
                }
            },
        },
    },
}
