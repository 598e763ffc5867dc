"""The audit log: an entry for every call and command that asks or changes something."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from kvstitch.service.plugins import GatewayPart, Tables, Verb, hookimpl

FILE = "audit.sqlite3"


class AuditSettings(BaseModel):
    """Whether there is an audit log, what it keeps, and for how long."""

    audit: bool = Field(
        False, description="keep an audit log: an entry for every question and every change"
    )
    audit_questions: Literal["hash", "text", "none"] = Field(
        "hash",
        description="what of a question is in its entry; hash: its SHA-256",
        json_schema_extra={"reloadable": True},
    )
    audit_retention_days: float = Field(
        0.0,
        ge=0,
        description="then entries are deleted, and that is one; 0: never",
        json_schema_extra={"reloadable": True},
    )


@hookimpl
def settings() -> type[BaseModel]:
    return AuditSettings


@hookimpl
def database_tables() -> Tables:
    return Tables(FILE, "kvstitch_audit.audit_log:AUDIT")


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("audit", "who did what: export, verify", _add_arguments)]


@hookimpl
def gateway_part(gateway: Any) -> GatewayPart:
    from kvstitch_audit.part import AuditPart

    return AuditPart(gateway)


@hookimpl
def operator_acted(settings: Any, action: str, tenant: str, details: Mapping[str, Any]) -> None:
    from kvstitch_audit.audit_log import of_operator, opened

    with opened(settings) as log:
        if log is not None:
            log.append([of_operator(action, tenant, details)])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvstitch_audit.command import add_arguments

    add_arguments(parser)
