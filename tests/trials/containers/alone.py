"""The image alone: as a nobody on a read-only file system it reads a file of each kind, answers a
question and ends when it is told to.

    python -m tests.trials.containers.alone kvstitch:0.2.0-cpu
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Iterator

from kvstitch import Client
from tests.service.gateway.documents.parsing.test_requirements import FILES, expected_text
from tests.trials.containers.engine import docker, wait_until_ready

CONFINED = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:size=1g,mode=1777",
    "--memory=8g",
)


@contextlib.contextmanager
def started(image: str) -> Iterator[tuple[str, str]]:
    """A container of the image and its address; it and its volume are removed afterwards."""
    name = f"kvstitch-alone-{uuid.uuid4().hex[:8]}"
    docker(
        "run", "-d", "--name", name, *CONFINED, "-p", "127.0.0.1::8000",
        "-v", f"{name}:/var/lib/kvstitch", "-e", "KVSTITCH_ALLOW_ANONYMOUS=true", image,
    )  # fmt: skip
    try:
        yield name, "http://" + docker("port", name, "8000").splitlines()[0]
    finally:
        with contextlib.suppress(AssertionError):
            print(docker("logs", "--tail", "5", name))
        docker("rm", "-f", name)
        docker("volume", "rm", name)


def read_each_kind(client: Client) -> None:
    """Hand in a file of each kind, and find in each stored text what stands in the file."""
    files = {f"{n}.{kind.partition(',')[0]}": kind for n, kind in enumerate(FILES)}
    job = client.precompute_files([(name, FILES[kind]) for name, kind in files.items()])
    job = client.wait(job, timeout_s=300)
    assert job.state == "succeeded", job.errors
    for name, kind in files.items():
        text = client.get_text(name).text
        assert expected_text(kind) in text, (kind, text)
        print(f"  {kind}: read, {len(text)} characters")


def try_image(image: str) -> None:
    with started(image) as (name, address):
        print(f"ready after {wait_until_ready(address):.1f} s")
        assert docker("exec", name, "id", "-u") == "10001"
        state = json.loads(docker("inspect", name))[0]
        assert state["HostConfig"]["ReadonlyRootfs"]
        with Client(address) as client:
            read_each_kind(client)
            client.ingest([{"doc_id": "quentin", "text": "Quentin Bruvik keeps a goat."}])
            answer = client.generate("Which animal does Quentin Bruvik keep?", top_k=1)
            assert answer.text == "goat", answer.text
            assert [one.doc_id for one in answer.citations] == ["quentin"]
            print(f"answer: {answer.text!r}")
        health = json.loads(docker("inspect", name))[0]["State"]["Health"]["Status"]
        assert health == "healthy", health
        docker("stop", "-t", "80", name)
        ended = json.loads(docker("inspect", name))[0]["State"]
        assert ended["ExitCode"] == 0 and not ended["OOMKilled"], ended
        print("stopped with exit code 0")


if __name__ == "__main__":
    try_image(sys.argv[1])
