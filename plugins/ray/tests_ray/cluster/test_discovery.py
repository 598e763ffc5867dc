"""Addresses come from a process that asks Ray; a script stands for it, as a real process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch_ray.cluster.discovery import RayActors

LONG_S = 240.0
# Each run prints the next of these lists and what Ray might print, then ends as if Ray were away.
SCRIPT = """
import json, pathlib, sys
state = pathlib.Path(sys.argv[1])
run = len(state.read_text()) if state.exists() else 0
state.write_text("x" * (run + 1))
print("Ray says something", flush=True)
lists = [["tcp://a:1"], ["tcp://a:1"], ["tcp://a:1", "tcp://b:1"]]
if run < len(lists):
    print(json.dumps({"addresses": lists[run]}), flush=True)
if run >= 2:
    sys.stdin.read()
sys.exit("Ray does not answer")
"""


def source(tmp_path: Path) -> RayActors:
    command = (sys.executable, "-c", SCRIPT, str(tmp_path / "runs"))
    return RayActors("ray://auto", command=command, backoff_s=(0.01, 0.02))


async def following(lists: AsyncIterator[list[str]]) -> list[str]:
    async with asyncio.timeout(LONG_S):
        return await anext(lists)


async def test_the_last_list_stays_while_ray_is_away(tmp_path: Path) -> None:
    async with aclosing(source(tmp_path).watch()) as lists:
        assert await following(lists) == ["tcp://a:1"]
        assert await following(lists) == ["tcp://a:1", "tcp://b:1"]
    assert (tmp_path / "runs").read_text() == "xxx"


@pytest.mark.parametrize("wrong", ["ray://", "ray://head", "tcp://a:1"])
def test_other_urls_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="ray://auto or ray://HOST:PORT"):
        RayActors(wrong)


def test_nothing_of_this_imports_ray() -> None:
    code = (
        "import sys, kvstitch.service.gateway.workers\n"
        "from kvstitch.service.cli import parser\n"
        "from kvstitch.service.gateway.fleet.discovery import source_of\n"
        "source_of('ray://auto')\n"
        "parser().parse_args(['cluster', 'status'])\n"
        "sys.exit(bool({'ray', 'kvstitch_ray.cluster.ray_cluster'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
