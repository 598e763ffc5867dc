"""Which settings a running service takes from its file anew, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from service.settings.settings import Settings

# What is looked at in every call. All else is built into something at the start: connections,
# processes, tables, the model.
RELOADABLE: Final = frozenset(
    {
        "cold", "condense", "drain_timeout_s",
        "history", "max_body_values", "max_document_bytes", "max_documents",
        "max_in_flight_per_key", "max_pdf_bytes", "max_question_chars", "max_texts",
        "max_texts_chars", "max_tokens_limit", "max_top_k", "max_waiting_tokens",
        "rerank_deadline_s", "rerank_timeout_s", "retrieval", "stream_ping_s",
        "tenant_max_bytes", "tenant_max_documents", "tenant_requests_per_minute",
        "tenant_tokens_per_minute",
    }
)  # fmt: skip


def is_reloadable(name: str, settings: type[BaseModel]) -> bool:
    """Return whether a running service takes over a setting, which may be a plugin's."""
    extra = settings.model_fields[name].json_schema_extra
    return name in RELOADABLE or (isinstance(extra, dict) and extra.get("reloadable") is True)


@dataclass(frozen=True)
class Reload:
    """What reading the settings again comes to.

    Attributes:
        changed: Settings that are to be taken over.
        need_restart: Settings that are others than the service runs with, and stay as they were.
    """

    changed: list[str]
    need_restart: list[str]

    @classmethod
    def of(cls, running: Settings, read: Settings) -> Reload:
        """Compare what the service runs with, and what was read again."""
        differ = [
            name
            for name in type(read).model_fields
            if getattr(running, name) != getattr(read, name)
        ]
        taken = sorted(name for name in differ if is_reloadable(name, type(read)))
        return cls(taken, sorted(set(differ).difference(taken)))

    def applied(self, running: Settings, read: Settings) -> Settings:
        """Return the settings to run with from now on."""
        return running.model_copy(update={name: getattr(read, name) for name in self.changed})

    def told(self) -> str:
        """What was done, for the log."""
        said = f"settings read again: {', '.join(self.changed) or 'nothing'} changed"
        if self.need_restart:
            said += f"; only a restart changes {', '.join(self.need_restart)}"
        return said
