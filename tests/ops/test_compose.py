"""docker-compose.yml: accepted for every profile, and what it promises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstitch.service.settings import all_settings, load
from tests.ops import tools

PROFILES = ("", "gpu", "monitoring", "load", "fleet", "vllm", "gpu,monitoring,load,fleet,vllm")
# Passed to the service only where the one who starts it has set them.
PASSED_ON = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
DEFAULT = {"kvstitch", "corpus", "redis"}
GATEWAYS, WORKERS = ("gateway-1", "gateway-2"), ("worker-1", "worker-2")
ADDED = {
    "gpu": {"kvstitch-gpu"},
    "monitoring": {"prometheus", "grafana"},
    "load": {"load"},
    "fleet": {"database", "proxy", *GATEWAYS, *WORKERS},
    "vllm": {"kvstitch-vllm", "vllm"},
}
# Settings of gateways and workers that are on several machines.
BETWEEN = {"KVSTITCH_WORKER_ADDRESSES", "KVSTITCH_FLEET_SECRET"}


def programs() -> list[str]:
    """Compose 2, and 1.29 where the system has one."""
    return [str(tools.TOOLS / "docker-compose"), *filter(None, [shutil.which("docker-compose")])]


@pytest.fixture(scope="module")
def everything(ops_tools: None) -> dict[str, Any]:
    """The resolved file with all profiles."""
    done = tools.compose(programs()[0], "config", "--format", "json", COMPOSE_PROFILES=PROFILES[-1])
    assert done.returncode == 0, done.stderr
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


@pytest.mark.parametrize("profiles", PROFILES)
def test_every_profile_is_valid(ops_tools: None, profiles: str) -> None:
    for program in programs():
        done = tools.compose(program, "config", "-q", COMPOSE_PROFILES=profiles)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_profiles_add_to_the_default(everything: dict[str, Any]) -> None:
    """The default is the demo on CPU; a profile adds what it is for and takes nothing away."""
    found: dict[str, set[str]] = {}
    for name, service in everything["services"].items():
        for profile in service.get("profiles", [""]):
            found.setdefault(profile, set()).add(name)
    assert found == {"": DEFAULT, **ADDED}


def test_every_service_is_confined(everything: dict[str, Any]) -> None:
    for name, service in everything["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        limits = service["deploy"]["resources"]["limits"]
        assert limits["memory"] and limits["cpus"], name
        assert all(p["host_ip"] == "127.0.0.1" for p in service.get("ports", ())), name
        if service["restart"] != "no":
            assert service["healthcheck"]["test"], name
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind":
                assert volume["read_only"], (name, volume)


@pytest.mark.parametrize("name", ["kvstitch", "kvstitch-gpu", "kvstitch-vllm"])
def test_the_service_accepts_its_environment(
    everything: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = everything["services"][name]
    known = {f"KVSTITCH_{field.upper()}" for field in all_settings().model_fields}
    for variable, value in service["environment"].items():
        if variable in PASSED_ON:
            assert value is None
            continue
        assert variable in known | {"HF_TOKEN"}
        monkeypatch.setenv(variable, value)
    settings = load()
    assert settings.redis_url == "redis://redis:6379/0"
    grace = int(re.fullmatch(r"1m(\d+)s", service["stop_grace_period"])[1]) + 60  # type: ignore[index]
    assert grace >= settings.drain_timeout_s + 15


def test_vllm_is_handed_what_the_service_hands_over(everything: dict[str, Any]) -> None:
    service, vllm = (everything["services"][name] for name in ("kvstitch-vllm", "vllm"))
    given = dict(each.removeprefix("--").split("=", 1) for each in vllm["command"] if "=" in each)
    environment = service["environment"]
    assert environment["KVSTITCH_ENGINE_URL"] == f"http://vllm:{given['port']}"
    assert environment["KVSTITCH_MODEL"] == given["model"]
    assert environment["KVSTITCH_DTYPE"] == given["dtype"]
    folder = json.loads(given["kv-transfer-config"])["kv_connector_extra_config"]["folder"]
    assert environment["KVSTITCH_HAND_OVER_DIR"] == folder
    mounts = [{v["target"]: v["source"] for v in each["volumes"]} for each in (service, vllm)]
    assert mounts[0][folder] == mounts[1][folder] == "hand-over"
    assert mounts[0]["/models"] == mounts[1]["/models"]


@pytest.mark.parametrize("name", [*GATEWAYS, *WORKERS])
def test_the_fleet_accepts_its_environment(
    everything: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = everything["services"][name]["environment"]
    known = {f"KVSTITCH_{field.upper()}" for field in all_settings().model_fields}
    assert set(given) <= known | BETWEEN | PASSED_ON | {"HF_TOKEN"}
    for variable in set(given) & known:
        monkeypatch.setenv(variable, given[variable])
    settings = load()
    assert settings.redis_url == "redis://redis:6379/0"  # what one stores the others find
    assert len(given["KVSTITCH_FLEET_SECRET"]) >= 32
    assert bool(settings.database) == (name in GATEWAYS)
    assert bool(settings.ssd_tier_gib) == (name in WORKERS)


def test_gateways_find_both_workers_by_one_name(everything: dict[str, Any]) -> None:
    services = everything["services"]
    secrets = {services[n]["environment"]["KVSTITCH_FLEET_SECRET"] for n in (*GATEWAYS, *WORKERS)}
    assert len(secrets) == 1
    for name in WORKERS:
        assert "fleet-workers" in services[name]["networks"]["default"]["aliases"]
        assert services[name]["command"][:2] == ["kvstitch", "worker"]
        assert "ports" not in services[name]  # only the containers of this file reach it
    for name in GATEWAYS:
        found = services[name]["environment"]["KVSTITCH_WORKER_ADDRESSES"]
        assert found == "dns://fleet-workers:5700"
        assert services[name]["environment"]["KVSTITCH_DATABASE"].endswith("@database/kvstitch")
    volumes = [v["source"] for n in (*GATEWAYS, *WORKERS) for v in services[n]["volumes"]]
    own = [source for source in volumes if source.startswith("data-")]
    assert len(own) == len(set(own)) == 4  # no two share a data folder


def test_the_example_names_what_the_file_reads(ops_tools: None) -> None:
    text = (tools.REPOSITORY / "docker-compose.yml").read_text()
    read = set(re.findall(r"\$\{([A-Z0-9_]+)", text)) - {"KVSTITCH_VERSION"}
    example = (tools.REPOSITORY / "docker" / "env.example").read_text()
    shown = set(re.findall(r"(?m)^#?([A-Z][A-Z0-9_]+)=", example)) - {"COMPOSE_PROJECT_NAME"}
    assert read | PASSED_ON == shown
    for program in programs():
        done = subprocess.run(
            [program, "--env-file", "docker/env.example", "config", "-q"],
            cwd=tools.REPOSITORY,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_what_is_mounted_exists(everything: dict[str, Any]) -> None:
    for service in everything["services"].values():
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind":
                assert tools.REPOSITORY in (path := Path(volume["source"])).parents
                assert path.exists()


def test_grafana_and_prometheus_find_each_other(everything: dict[str, Any]) -> None:
    docker = tools.REPOSITORY / "docker"
    sources = yaml.safe_load(
        (docker / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((docker / "grafana/provisioning/dashboards/kvstitch.yml").read_text())
    mounted = {v["target"] for v in everything["services"]["grafana"]["volumes"]}
    assert provider["providers"][0]["options"]["path"] in mounted
    scrape = yaml.safe_load((docker / "prometheus/prometheus.yml").read_text())
    names = scrape["scrape_configs"][0]["dns_sd_configs"][0]["names"]
    assert set(names) <= set(everything["services"])


def test_prometheus_accepts_its_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    file = tools.REPOSITORY / "docker" / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
