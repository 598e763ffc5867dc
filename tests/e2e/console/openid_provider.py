"""oidc-provider, a certified OpenID provider, as a process: scripts/install-oidc-provider.sh."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page

from tests.ports import free_port

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parent / "provider" / "provider.mjs"
INSTALLED = ROOT / "build" / "oidc-provider"
OLDEST_NODE = 20


class OpenIdProvider:
    """People sign in there as whoever they like; groups are in provider.mjs."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"

    def set(self, **wanted: Any) -> None:
        """audience="shop": of tokens from now on; ttl=8: their seconds; keys="new": signed anew."""
        httpx.post(f"{self.issuer}/test", json=wanted).raise_for_status()

    def sign_in(self, page: Page, name: str) -> None:
        """On its own pages, from where the console has led."""
        page.get_by_placeholder("Enter any login").fill(name)
        page.get_by_placeholder("and password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()

    def cancel(self, page: Page) -> None:
        page.get_by_role("link", name="[ Cancel ]").click()

    def sign_out(self, page: Page) -> None:
        page.get_by_role("button", name="Yes, sign me out").click()


@contextmanager
def openid_provider(place: str) -> Iterator[OpenIdProvider]:
    """Args: place: the address to which it sends people back."""
    node = shutil.which("node")
    if node is None or _version(node) < OLDEST_NODE:
        pytest.skip(f"oidc-provider needs Node {OLDEST_NODE} or newer")
    subprocess.run([ROOT / "scripts" / "install-oidc-provider.sh"], check=True)
    # Modules are looked for beside the script, so it goes where they are.
    script = shutil.copyfile(SCRIPT, INSTALLED / SCRIPT.name)
    port = free_port()
    with subprocess.Popen(
        [node, script, str(port), place], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield OpenIdProvider(port)
        finally:
            process.kill()


def _version(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", said)
    return int(found[1]) if found else 0
