"""Builds an image of docker/Dockerfile with this machine's package configuration.

What pip is told here (indexes, folders of wheels, certificates) reaches the build as secrets, and
folders are served on loopback while it runs: none of it is in a layer. Needs BuildKit.

    python -m scripts.containers.build --target service -t kvstitch:0.2.0-cpu [--build-arg …]
"""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Settings of pip that say where packages come from.
SOURCES = ("index-url", "extra-index-url", "find-links", "trusted-host")


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves folders without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def pip_settings() -> dict[str, str]:
    """Return this machine's settings of pip by name; the environment's replace those of files."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found: dict[str, str] = {}
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2].lower()] = value.strip("'")
    return found


def reachable(value: str, port: int) -> str:
    """Return a setting with its local folders as the build reaches them."""
    parts = (
        part.removeprefix("file://") if part.startswith("file:") else part for part in value.split()
    )
    return " ".join(f"http://127.0.0.1:{port}{p}/" if p.startswith("/") else p for p in parts)


def served(settings: dict[str, str]) -> bool:
    return any(
        part.startswith(("/", "file:"))
        for name in SOURCES
        for part in settings.get(name, "").split()
    )


def build(arguments: list[str]) -> int:
    """Run `docker build` with these arguments; its exit code."""
    settings = pip_settings()
    client = os.environ.get("DOCKER", "docker")
    command = [client, "build", "--network=host", "-f", "docker/Dockerfile", *arguments]
    if not any(a.startswith("TORCH_INDEX_URL=") for a in arguments):
        # A folder of wheels may have torch for CPU; the index is asked where it has not.
        index = os.environ.get("TORCH_INDEX_URL", settings.get("index-url", ""))
        if not index and "find-links" in settings:
            index = "https://pypi.org/simple"
        command += ["--build-arg", f"TORCH_INDEX_URL={index}"]
    handler = functools.partial(Files, directory="/")
    with tempfile.TemporaryDirectory() as folder:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lines = ["[global]"]
        lines += [
            f"{name} = {reachable(settings[name], server.server_port)}"
            for name in SOURCES
            if name in settings
        ]
        if cert := settings.get("cert"):
            lines.append("cert = /run/secrets/ca")
            command += ["--secret", f"id=ca,src={cert}"]
        config = Path(folder) / "pip.conf"
        config.write_text("\n".join(lines) + "\n")
        command += ["--secret", f"id=pip,src={config}", "."]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        try:
            return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        finally:
            server.shutdown()
            server.server_close()


if __name__ == "__main__":
    sys.exit(build(sys.argv[1:]))
