"""What is not a regular file among the KV files neither stops the service nor its reads."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests import preloaded
from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import tiers


@pytest.mark.slow
def test_the_service_starts_and_reads(serve: Serve, corpus: Documents) -> None:
    with serve(memory_tier_mib=0) as service:
        service.ingest(corpus[:2])
        service.kill_nine()
        kv = service.data_dir / "kv"
        file = sorted(service.chunk_files())[0]
        foreign = [
            kv / "a folder",
            kv / "tmp" / "a folder",
            file.with_name(f"{'f' * 32}.safetensors"),
            file.with_name(f"{'f' * 32}.sketch.extra"),
        ]
        for path in foreign:
            path.mkdir()
        for path in (kv / "pipe", kv / "tmp" / "pipe", file.with_name("pipe.safetensors")):
            os.mkfifo(path)
            foreign.append(path)
        (kv / "loop").symlink_to("loop")
        service.start()
        names = [document["doc_id"] for document in corpus[:2]]
        answer = service.ask("Which colour is it?", documents=names, top_k=2, max_tokens=4)
        assert tiers(answer) == ["ssd", "ssd"]
        assert all(os.path.lexists(path) for path in foreign)
        command = [*preloaded.python(), "-m", "kvstitch.service.cli", "doctor", "--json"]
        command += ["--data-dir", str(service.data_dir), "--port", str(service.port)]
        found = subprocess.run(command, capture_output=True, check=False, timeout=120)
        (finding,) = [f for f in json.loads(found.stdout)["checks"] if f["check"] == "kv folder"]
        assert finding["level"] == "warn" and "and 5 more" in finding["message"]
