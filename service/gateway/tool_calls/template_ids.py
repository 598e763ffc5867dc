"""Ids of calls, as a chat template takes them."""

from __future__ import annotations

import hashlib

from service.gateway.tool_calls.forms import ToolForm


def template_id(id: str, form: ToolForm) -> str:
    """The id, or, where the form's ids have a length, one of that length made from it."""
    length = form.id_length
    if not length or (len(id) == length and id.isalnum()):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:length]
