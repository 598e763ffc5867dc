"""Settings: environment, overrides, readable errors, the worker's slice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import demo_model, load, unknown_variables
from kvstitch.service.shared.worker_settings import MIB


def test_defaults_serve_the_demo_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    settings = load()
    assert (settings.host, settings.port, settings.redis_url) == ("127.0.0.1", 8000, "")
    assert settings.data_dir == Path("/somewhere/kvstitch") and settings.model == ""
    assert demo_model().name == "demo_model" and demo_model().parent.name == "service"


def test_environment_and_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVSTITCH_PORT", "9000")
    monkeypatch.setenv("KVSTITCH_CODEC", "int8")
    monkeypatch.setenv("KVSTITCH_TOP_K", "")
    settings = load(port=9001, host=None, data_dir=str(tmp_path))
    assert (settings.port, settings.codec, settings.top_k) == (9001, "int8", None)
    assert settings.data_dir == tmp_path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", 70000, "port (KVSTITCH_PORT) = 70000: input should be less than"),
        ("port", "web", "port (KVSTITCH_PORT) = 'web': input should be a valid integer"),
        ("gate_min_checks", 33, "must be at most gate_window, 32"),
        ("gate_sample", 1.5, "less than or equal to 1"),
        ("codec", "zip", "codec (KVSTITCH_CODEC) = 'zip': input should be 'int2', 'int4'"),
        ("prefix_mode", "all", "must be one of none, bos, bos_keep, system"),
        ("redis_url", "localhost:6379", "must start with redis://"),
        ("write_tiers", "ssd,tape", "there is no tier 'tape'; besides memory: ssd"),
        ("embedder_url", "localhost:8080", "must start with http://"),
        ("reranker_url", "localhost:8080", "must start with http://"),
        ("reranker_style", "x", "reranker_style (KVSTITCH_RERANKER_STYLE)"),
        ("rerank_deadline_s", "0", "rerank_deadline_s (KVSTITCH_RERANK_DEADLINE_S)"),
        ("tenant_secret", "xyz", "tenant_secret (KVSTITCH_TENANT_SECRET)"),
        ("lora", "legal", "'legal' is not NAME=FOLDER"),
        ("lora", "a b=/x", "'a b=/x' is not NAME=FOLDER"),
        ("lora", "a=/x, a=/y", "the name a is given twice"),
        ("lora_precompute", "a", "there is no adapter 'a': lora names none"),
        ("tensor_parallel", 2, "several GPUs: vLLM"),
        ("nonsense", 1, "nonsense"),
    ],
)
def test_wrong_values_are_explained(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        load(**{name: value})
    assert message in error.value.message


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(InvalidSetting) as error:
        load(port=-1, max_running=0)
    assert len(error.value.message.splitlines()) == 2


def test_addresses_of_shared_tiers(tmp_path: Path) -> None:
    settings = load(redis_url="redis+cluster://a:1,b:2", write_tiers=" ssd , redis")
    worker = settings.worker(tmp_path, "x")
    assert worker.redis_url == "redis+cluster://a:1,b:2"
    assert worker.write_tiers == "ssd,redis" and load().worker(tmp_path, "x").write_tiers == ""


def test_worker_slice(tmp_path: Path) -> None:
    settings = load(
        data_dir=tmp_path, redis_url="redis://r", memory_tier_mib=3, ssd_tier_gib=0.5, threads=2
    )
    worker = settings.worker(tmp_path / "m", "ipc:///x")
    assert worker.model == str(tmp_path / "m") and worker.address == "ipc:///x"
    assert worker.model_name == "kvstitch-demo"
    assert load(model="org/name").model_name == "org/name"
    assert load(model=str(tmp_path)).model_name == tmp_path.name
    assert worker.kv_dir == str(tmp_path / "kv") and worker.ssd_tier_bytes == 512 * MIB
    assert worker.memory_tier_bytes == 3 * MIB and worker.redis_url == "redis://r"
    assert worker.threads == 2 and type(worker).from_json(worker.to_json()) == worker
    assert load(data_dir=tmp_path, ssd_tier_gib=0).worker(tmp_path, "x").kv_dir == ""


def test_variables_that_are_no_settings_are_named_with_what_was_meant() -> None:
    environment = dict.fromkeys(
        ("KVSTITCH_MEMORY_TEIR_MIB", "kvstitch_codek", "KVSTITCH_COLOUR_OF_THE_SKY", "PATH",
         "KVSTITCH_CODEC", "kvstitch_port", "KVSTITCH_URL", "KVSTITCH_API_KEY",
         "KVSTITCH_SERVICE_HOST", "KVSTITCH_PORT_8000_TCP", "KVSTITCH_REDIS_PORT_6379_TCP"), "x"
    )  # fmt: skip
    assert unknown_variables(environment) == [
        "KVSTITCH_COLOUR_OF_THE_SKY is no setting and has no effect",
        "KVSTITCH_MEMORY_TEIR_MIB is no setting and has no effect: did you mean "
        "KVSTITCH_MEMORY_TIER_MIB?",
        "kvstitch_codek is no setting and has no effect: did you mean KVSTITCH_CODEC?",
    ]
