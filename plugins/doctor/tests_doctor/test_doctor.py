"""`kvstitch doctor`: every check on folders, servers and settings that are right, then wrong."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from kvstitch.service.cli import main
from kvstitch.service.gateway.auth.keys import KeyStore
from kvstitch.service.settings import demo_model
from kvstitch.service.shared.model_fingerprint import fingerprint
from kvstitch.service.worker.kernels.cpu import native
from tests import ports
from tests.redis_server import redis_server
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig
from tests.service.worker.model.families.test_hybrids import CONFIGS

__all__ = ["folder", "rig"]

SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json", "kvstitch.json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo model's folder as a copy that tests may damage."""
    made = tmp_path / "own"
    made.mkdir()
    for name in (*SMALL, "model.safetensors"):
        if (demo_model() / name).is_file():
            shutil.copyfile(demo_model() / name, made / name)
    return made


@pytest.fixture
def free_port() -> str:
    return str(ports.free_port())


class Doctor:
    """`doctor --json` on one model and data folder: findings by check."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *given: str) -> None:
        self._capsys, self._given = capsys, given

    def __call__(self, *more: str, code: int = 0) -> dict[str, Any]:
        self._capsys.readouterr()
        assert main(["doctor", "--json", *self._given, *more]) == code
        found = json.loads(self._capsys.readouterr().out)
        assert (found["level"] == "fail") == bool(code)
        for finding in found["checks"]:
            assert bool(finding["remedy"]) == (finding["level"] != "ok"), finding
        return {finding["check"]: finding for finding in found["checks"]}


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, free_port: str
) -> Doctor:
    small = ("--memory-tier-mib", "1", "--ssd-tier-gib", "0.01", "--port", free_port)
    return Doctor(capsys, "--model", str(model), "--data-dir", str(tmp_path / "data"), *small)


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_all_is_well(doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor()
    assert {f["level"] for f in found.values()} == {"ok"}
    assert set(found) == {
        "packages", "model", "tokenizer", "weights", "memory", "defaults", "data folder", "disk",
        "embedder", "index", "tiers", "port", "keys", "service",
    }  # fmt: skip
    assert not (tmp_path / "data").exists(), "looking changes nothing"
    assert main(["doctor", "--data-dir", str(tmp_path / "data"), "--redis", "redis://no.host"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "what to do" in out and "1 fail" in out


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    run = "from kvstitch.service.cli import main; import sys; "
    run += "main(['doctor', '--data-dir', sys.argv[1]])"
    after = "; print({'torch', 'transformers', 'faiss'} & set(sys.modules))"
    command = [sys.executable, "-c", run + after, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert found.stdout.splitlines()[-1] == "set()", found


def test_models_that_are_refused(doctor: Doctor, model: Path) -> None:
    change(model / "config.json", model_type="gpt2")
    assert "qwen3" in doctor(code=1)["model"]["remedy"]
    change(model / "config.json", model_type="llama", rope_parameters={"rope_type": "spiral"})
    assert "spiral" in doctor(code=1)["model"]["message"]
    change(model / "config.json", rope_parameters=None, rope_scaling={"type": "helix"})
    assert "helix" in doctor(code=1)["model"]["message"]
    change(model / "config.json", rope_scaling=None, partial_rotary_factor=0.75)
    assert "partial_rotary_factor 0.75" in doctor(code=1)["model"]["message"]
    change(model / "config.json", partial_rotary_factor=None)
    change(model / "config.json", rope_scaling={"type": "linear", "factor": 2.0})
    assert doctor()["model"]["level"] == "ok"
    change(model / "config.json", quantization_config={"quant_method": "gptq"})
    assert doctor("--device", "cpu", code=1)["model"]["remedy"] == "pip install gptqmodel optimum"
    change(model / "config.json", quantization_config=None)
    change(model / "config.json", model_type="gemma3n", vision_config={})
    refused = doctor(code=1)
    assert "reads images" in refused["model"]["message"]
    assert "tokenizer" not in refused and "weights" not in refused, "neither is looked for"
    (model / "config.json").write_text("{")
    assert "cannot be read" in doctor(code=1)["model"]["message"]
    assert doctor("--model", str(model / "none"), code=1)["model"]["level"] == "fail"
    assert doctor("--model", "someone/something")["model"]["level"] == "warn"


def test_lora_adapters(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "legal"
    folder.mkdir()
    given = ("--lora", f"legal={folder}")
    assert "no readable adapter_config.json" in doctor(*given, code=1)["lora"]["message"]
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{s}.weight" for s in "AB"]
    save_file({name: numpy.ones((2, 2)) for name in names}, folder / "adapter_model.safetensors")
    found = doctor(*given)["lora"]
    assert found["level"] == "ok" and "legal: rank 2, q_proj" in found["message"]
    assert "NAME=FOLDER" in doctor("--lora-modules", "legal", code=1)["settings"]["message"]


def test_what_is_known_of_a_model_from_its_config_alone(doctor: Doctor, model: Path) -> None:
    facts = {
        "model_type": "phi3", "num_hidden_layers": 32, "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_parameters": None, "rope_scaling": {"type": "longrope"}, "sliding_window": 262144,
        "partial_rotary_factor": 0.75, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(facts))
    expected = (
        "phi3, 32 layers, bfloat16, quantised (mxfp4), RoPE longrope on 75% of a head, "
        "windows of 262144 tokens in all layers, context 4096"
    )
    assert doctor()["model"]["message"] == f"{model}: {expected}"
    ropes = {"full_attention": {"rope_type": "linear"}, "sliding_attention": {}}
    facts = {
        "model_type": "gemma3_text", "num_hidden_layers": 3, "max_position_embeddings": 32768,
        "rope_parameters": ropes, "sliding_window": 512,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(facts))
    expected = (
        "gemma3_text, 3 layers, RoPE default and linear, windows of 512 tokens in 2 of 3 layers, "
        "context 32768"
    )
    assert doctor()["model"]["message"] == f"{model}: {expected}"


def test_serve_refuses_before_it_imports_the_gateway(model: Path) -> None:
    """So that the sentence comes at once."""
    change(model / "config.json", model_type="of tomorrow")
    run = "from kvstitch.service.cli import main; import sys; "
    run += "code = main(['serve', '--model', sys.argv[1]])"
    gateway = "kvstitch.service.gateway.composition"
    after = f"; print(code, {{'fastapi', '{gateway}', 'torch'}} & set(sys.modules))"
    command = [sys.executable, "-c", run + after, str(model)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert found.stdout == "3 set()\n", found
    assert found.stderr.count("\n") == 1 and "of tomorrow" in found.stderr


def test_damaged_files(doctor: Doctor, model: Path) -> None:
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    assert "damaged" in doctor(code=1)["weights"]["message"]
    weights.write_bytes(whole)
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002.safetensors"}}))
    assert "model-00002.safetensors" in doctor(code=1)["weights"]["message"]
    index.unlink()
    (model / "tokenizer.json").write_text("{}")
    assert doctor(code=1)["tokenizer"]["level"] == "fail"


def test_data_folder(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "jobs.sqlite3").write_bytes(b"not a database, and long enough" * 200)
    assert "jobs.sqlite3" in doctor(code=1)["databases"]["message"]
    full = doctor("--ssd-tier-gib", "1000000000", code=1)["disk"]
    assert full["level"] == "warn" and "--ssd-tier-gib" in full["remedy"]
    (tmp_path / "file").write_text("no folder")
    found = doctor("--data-dir", str(tmp_path / "file" / "below"), code=1)
    assert found["data folder"]["level"] == "fail"


def test_redis(doctor: Doctor) -> None:
    with redis_server() as redis:
        found = doctor("--redis", redis.url)
        assert found["redis"]["level"] == "ok"
        assert "not set" in found["redis memory"]["message"]
        redis.freeze()
        assert doctor("--redis", redis.url, code=1)["redis"]["level"] == "fail"
        redis.thaw()
    with redis_server(maxmemory="8mb") as redis:
        assert "allkeys-lru" in doctor("--redis", redis.url)["redis memory"]["remedy"]
    with redis_server(maxmemory="8mb", policy="allkeys-lru") as redis:
        assert doctor("--redis", redis.url)["redis memory"]["level"] == "ok"
    with redis_server(maxmemory="8mb", policy="volatile-lru") as redis:
        assert doctor("--redis", redis.url)["redis memory"]["level"] == "warn"
        ttl = ("--redis-ttl", "60")
        assert doctor("--redis", redis.url, *ttl)["redis memory"]["level"] == "ok"
        as_cluster = redis.url.replace("redis://", "redis+cluster://").removesuffix("/0")
        found = doctor("--redis", as_cluster, code=1)
        assert "is not part of a cluster" in found["redis"]["message"]
    secret = redis.url.replace("//", "//:geheim@")
    assert "geheim" not in str(doctor("--redis", secret, code=1))


def test_exposure_and_ports(doctor: Doctor, tmp_path: Path, free_port: str) -> None:
    everywhere = ("--host", "0.0.0.0")
    assert "keys create" in doctor(*everywhere, code=1)["keys"]["remedy"]
    store = KeyStore(tmp_path / "data" / "keys.sqlite3")
    store.start()
    _, key = store.create()
    assert "1 of 1" in doctor(*everywhere)["keys"]["message"]
    store.revoke(key.key_id)
    assert "none of 1" in doctor(code=1)["keys"]["message"]
    store.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(free_port)))
        taken.listen()
        url = ("--url", "http://127.0.0.1:1")
        assert "--port" in doctor(*url, code=1)["port"]["remedy"]


def test_a_wrong_setting_is_a_finding(doctor: Doctor) -> None:
    found = doctor("--prefix-mode", "sideways", code=1)
    assert "prefix_mode" in found["settings"]["message"] and "model" not in found


def test_what_answers_is_something_else(doctor: Doctor) -> None:
    with endpoint(lambda *_: (200, {})) as other:
        found = doctor("--url", other.url)["service"]
    assert found["level"] == "warn" and "not kvstitch" in found["message"]


def test_a_service_that_runs(doctor: Doctor, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder's documents are by another embedder than the one asked about."""
    rig.ingest()
    given = ("--url", rig.url, "--data-dir", str(rig.gateway.settings.data_dir))
    found = doctor(*given, code=1)
    assert found["service"]["level"] == "ok" and "is ready" in found["service"]["message"]
    assert "serves from it" in found["data folder"]["message"] and "tokenizer" in found
    main(["doctor", "--json", *given])  # no model is named: the one that runs is meant
    told = json.loads(capsys.readouterr().out)["checks"]
    (memory,) = (each for each in told if each["check"] == "memory")
    assert "which runs: KV pool" in memory["message"]
    assert {"model", "tokenizer", "defaults"}.isdisjoint(each["check"] for each in told)
    assert "3 documents" in found["index"]["message"] and found["index"]["level"] == "fail"
    rig.gateway.limiter.draining = True
    assert "shutting down" in doctor(*given, code=1)["service"]["message"]


def test_deep_runs_the_start_up_check(doctor: Doctor, model: Path) -> None:
    found = doctor("--deep")
    assert "to transformers" in found["start-up check"]["message"]
    assert "384" in found["embedding"]["message"]
    said = found["kernels"]["message"]
    if native.module() is None and not native.has_avx2_alone():
        assert said == f"torch in their place: {native.why_missing()}"
    elif native.has_avx2_alone():
        assert f"{native.why_missing()}; 192 rows by a weight of 1 M: " in said
    else:
        assert said.startswith("all")
    change(model / "config.json", model_type="gpt2")
    assert doctor("--deep", code=1)["start-up check"]["level"] == "fail"


def test_the_default_of_a_model_that_keeps_states_is_one_that_it_runs(
    doctor: Doctor, model: Path
) -> None:
    assert "question_scout" in doctor()["defaults"]["message"]
    for config in CONFIGS.values():
        config().save_pretrained(model)
        assert '{"method": "legolink"}' in doctor()["defaults"]["message"]
        told = doctor("--quantize", "int8", code=1)["model"]["message"]
        assert "layers that keep a state, which --quantize int8 does not reach" in told
    (model / "config.json").write_text("[]")
    assert "question_scout" in doctor(code=1)["defaults"]["message"]


def test_says_where_the_defaults_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def defaults() -> tuple[str, str]:
        main(["doctor", "--data-dir", str(tmp_path), "--json", "--url", "http://127.0.0.1:9"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        (found,) = [c for c in checks if c["check"] == "defaults"]
        return found["level"], found["message"]

    assert defaults()[0] == "ok" and "built in" in defaults()[1]
    path = tmp_path / "calibration.json"
    fields = {"defaults": {"fusion": {"method": "pie"}, "codec": "int8"}, "measured": []}
    path.write_text(json.dumps({"model": "another", **fields}))
    assert defaults()[0] == "warn" and "another model" in defaults()[1]
    path.write_text(json.dumps({"model": fingerprint(str(demo_model())), **fields}))
    level, message = defaults()
    assert level == "ok" and '"pie"' in message and "int8" in message and str(path) in message
