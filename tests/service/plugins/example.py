"""A plugin with something of most kinds."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from kvstitch.service.plugins import FileFormat, GatewayPart, Verb, hookimpl

CALLS: list[str] = []
router = APIRouter()


class ExampleSettings(BaseModel):
    example_word: str = Field("hello", description="what is said")
    example_key: str = Field("", repr=False, description="a secret")
    example_limit: int = Field(3, ge=1, json_schema_extra={"reloadable": True})


class ExamplePart(GatewayPart):
    routers = (router,)

    async def start(self) -> None:
        CALLS.append("start")

    async def close(self) -> None:
        CALLS.append("close")

    async def settings_changed(
        self, settings: Any, changed: Sequence[str], need_restart: Sequence[str]
    ) -> None:
        CALLS.append(f"changed {','.join(changed)}")


@router.get("/example")
async def example() -> str:
    """Say something."""
    return "here"


def shout(content: bytes, bounds: Any) -> Any:
    from kvstitch.service.gateway.documents.parsing.parsed_file import ParsedFile

    return ParsedFile(content.decode().upper(), "Shouted")


@hookimpl
def settings() -> type[BaseModel]:
    return ExampleSettings


@hookimpl
def command_line_verbs() -> list[Verb]:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(command=lambda args: 7)

    return [Verb("example", "an example", add_arguments)]


@hookimpl
def file_formats() -> list[FileFormat]:
    parser = f"{__name__}:shout"
    return [FileFormat("shout", "text/x-shout", (".shout",), parser, (b"SHOUT ",), text=True)]


@hookimpl
def fusion_methods() -> Mapping[str, str]:
    return {"example": "kvstitch.service.worker.methods.fusion.full_reuse:Method"}


@hookimpl
def gateway_part(gateway: Any) -> GatewayPart:
    return ExamplePart()
