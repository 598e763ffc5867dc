"""The chart, rendered by Helm's own engine, against Kubernetes' schemas and its own promises."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstitch.service.settings import all_settings, load
from tests.ops import tools
from tests.ops.conftest import KUBERNETES, Rendered

EVERY = sorted(file.stem for file in tools.VALUES.glob("*.yaml"))
CASES = [case for case in EVERY if not case.startswith("fleet")]  # one container for all
WORKLOADS = ("StatefulSet", "Deployment", "Pod", "Job")


def one(answer: dict[str, Any], kind: str, ending: str = "") -> dict[str, Any]:
    """The only object of that kind whose name ends so."""
    (found,) = (
        item
        for item in answer["objects"]
        if item["kind"] == kind and item["metadata"]["name"].endswith(ending)
    )
    return found


def pods(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod spec of everything that runs."""
    for item in answer["objects"]:
        if item["kind"] in WORKLOADS:
            yield item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]
        if item["kind"] == "RayCluster":
            groups = [item["spec"]["headGroupSpec"], *item["spec"]["workerGroupSpecs"]]
            yield from (group["template"]["spec"] for group in groups)


def server(answer: dict[str, Any]) -> dict[str, Any]:
    """The server's pod spec."""
    spec: dict[str, Any] = one(answer, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def environment(answer: dict[str, Any]) -> dict[str, str]:
    """What the server's process sees, without what comes from Secrets."""
    names = [s["configMapRef"]["name"] for s in server(answer)["containers"][0]["envFrom"]]
    found = dict(one(answer, "ConfigMap", names[0])["data"])
    env = server(answer)["containers"][0].get("env", ())
    return found | {e["name"]: e["value"] for e in env if "value" in e}


@pytest.mark.parametrize("case", EVERY)
def test_every_object_is_valid_in_two_versions_of_kubernetes(rendered: Rendered, case: str) -> None:
    assert rendered[case]["error"] is None
    assert rendered[case]["problems"] == []
    assert len(rendered[case]["objects"]) >= 4


def test_every_setting_of_the_chart_is_one_of_the_service(rendered: Rendered) -> None:
    schema = json.loads((tools.CHART / "values.schema.json").read_text())
    names = set(schema["properties"]["settings"]["properties"])
    assert names <= set(all_settings().model_fields)


@pytest.mark.parametrize("case", CASES)
def test_the_service_accepts_the_environment(
    rendered: Rendered, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment(rendered[case])
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    known = {f"KVSTITCH_{name.upper()}" for name in all_settings().model_fields}
    assert {name for name in given if name.startswith("KVSTITCH_")} <= known
    grace = one(rendered[case], "StatefulSet")["spec"]["template"]["spec"]
    assert grace["terminationGracePeriodSeconds"] >= settings.drain_timeout_s + 15
    assert settings.ssd_tier_gib == pytest.approx(0.9 * kv_gib(rendered[case]))


def kv_gib(answer: dict[str, Any]) -> float:
    """Size of the volume below the SSD tier."""
    spec = one(answer, "StatefulSet")["spec"]
    for claim in spec.get("volumeClaimTemplates", ()):
        if claim["metadata"]["name"] == "kv":
            return float(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    (volume,) = (v for v in server(answer)["volumes"] if v["name"] == "kv")
    return float(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))


def test_service_links_would_break_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why every pod has enableServiceLinks: false."""
    monkeypatch.setenv("KVSTITCH_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(Exception, match="KVSTITCH_PORT"):
        load()


@pytest.mark.parametrize("case", EVERY)
def test_every_pod_meets_the_restricted_standard(rendered: Rendered, case: str) -> None:
    """Pod Security Standards, profile restricted, and a root file system nobody writes to."""
    for pod in pods(rendered[case]):
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for volume in pod["volumes"]:
            if "hostPath" in volume:  # asked for, and said to be forbidden by that profile
                assert (case, volume["name"]) == ("fleet-local", "kv")
                continue
            assert {"emptyDir", "configMap", "persistentVolumeClaim"} & set(volume)
            assert volume.get("emptyDir") != {}, "an emptyDir without a limit"
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("case", CASES)
def test_what_is_mounted_and_selected_exists(rendered: Rendered, case: str) -> None:
    answer = rendered[case]
    stateful = one(answer, "StatefulSet")["spec"]
    claims = {c["metadata"]["name"] for c in stateful.get("volumeClaimTemplates", ())}
    for pod in pods(answer):
        volumes = {v["name"] for v in pod["volumes"]} | (
            claims if pod is stateful["template"]["spec"] else set()
        )
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
    labels = [
        (item["metadata"] if item["kind"] == "Pod" else item["spec"]["template"]["metadata"])[
            "labels"
        ].items()
        for item in answer["objects"]
        if item["kind"] in WORKLOADS
    ]
    for item in answer["objects"]:
        if item["kind"] == "Service":
            assert any(item["spec"]["selector"].items() <= found for found in labels)
        if item["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            chosen = item["spec"].get("podSelector") or item["spec"]["selector"]
            assert any(chosen["matchLabels"].items() <= found for found in labels)
        if item["kind"] == "ServiceMonitor":
            chosen = item["spec"]["selector"]["matchLabels"].items()
            services = [o for o in answer["objects"] if o["kind"] == "Service"]
            assert sum(chosen <= s["metadata"]["labels"].items() for s in services) == 1
        if item["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = item["spec"]["scaleTargetRef"]
            assert target["name"] == one(answer, "StatefulSet")["metadata"]["name"]
            assert "replicas" not in stateful


def test_a_gpu_is_asked_for_and_the_device_set(rendered: Rendered) -> None:
    pod = server(rendered["gpu"])
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "80Gi", "nvidia.com/gpu": 1}
    assert container["image"].startswith("registry.example/kvstitch@sha256:")
    assert pod["runtimeClassName"] == "nvidia"
    assert environment(rendered["gpu"])["KVSTITCH_DEVICE"] == "cuda"
    assert environment(rendered["gpu"])["KVSTITCH_MAX_WAITING_TOKENS"] == "2097152"  # no float
    claims = one(rendered["gpu"], "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert [c["spec"].get("storageClassName") for c in claims] == [None, "local-nvme"]


def test_vllm_has_the_server_s_model_and_shared_memory(rendered: Rendered) -> None:
    pod = server(rendered["vllm"])
    own, vllm = pod["containers"]
    found = [{m["name"]: m["mountPath"] for m in each["volumeMounts"]} for each in (own, vllm)]
    assert {name: found[0][name] for name in ("shm", "models")} == {
        name: found[1][name] for name in ("shm", "models")
    }
    settings = environment(rendered["vllm"])
    given = dict(each.removeprefix("--").split("=", 1) for each in vllm["args"] if "=" in each)
    assert settings["KVSTITCH_ENGINE_URL"] == f"http://{given['host']}:{given['port']}"
    assert settings["KVSTITCH_MODEL"] == given["model"]
    assert settings["KVSTITCH_DTYPE"] == given["dtype"]
    assert vllm["args"][-2:] == ["--tensor-parallel-size", "2"]
    assert json.loads(given["kv-transfer-config"])["kv_load_failure_policy"] == "recompute"
    (copies,) = pod["initContainers"]
    assert copies["image"] == own["image"]
    (volume,) = copies["volumeMounts"]
    assert {"name": "PYTHONPATH", "value": volume["mountPath"]} in vllm["env"]


def test_no_secret_is_rendered_where_secrets_exist(rendered: Rendered) -> None:
    for case in ("existing-secrets", "hardened"):
        assert not [o for o in rendered[case]["objects"] if o["kind"] == "Secret"]
    found = {
        e["name"]: e["valueFrom"]["secretKeyRef"]
        for e in server(rendered["existing-secrets"])["containers"][0]["env"]
        if "valueFrom" in e
    }
    assert found == {
        "KVSTITCH_REDIS_URL": {"name": "redis", "key": "url"},
        "KVSTITCH_TENANT_SECRET": {"name": "tenant", "key": "hex"},
        "HF_TOKEN": {"name": "hub", "key": "token"},
    }


def test_values_given_as_secrets_are_only_in_secrets(rendered: Rendered) -> None:
    for secret in ("00112233445566778899aabbccddeeff", "hf_example", "example-password"):
        kinds = {o["kind"] for o in rendered["secret-values"]["objects"] if secret in json.dumps(o)}
        assert kinds <= {"Secret"}


def test_network_policies(rendered: Rendered) -> None:
    """Denied by default; the hardened server lets in what was named and its own test, no others."""
    answer = rendered["hardened"]
    deny = one(answer, "NetworkPolicy", "default-deny")["spec"]
    assert "ingress" not in deny and "egress" not in deny
    (rule,) = one(answer, "NetworkPolicy", "kvstitch-server")["spec"]["ingress"]
    assert [list(peer) for peer in rule["from"]] == [
        ["podSelector"],
        ["namespaceSelector", "podSelector"],
    ]
    redis = one(answer, "NetworkPolicy", "kvstitch-redis")["spec"]
    assert "egress" not in redis
    out = {
        case: [
            port["port"]
            for rule in one(rendered[case], "NetworkPolicy", "kvstitch-server")["spec"]["egress"]
            for port in rule["ports"]
        ]
        for case in ("default", "external-redis", "existing-secrets")
    }
    assert out == {
        "default": [53, 53, "redis"],
        "external-redis": [53, 53, 6380],
        "existing-secrets": [53, 53, 6379, 443],
    }
    assert not [o for o in rendered["no-persistence"]["objects"] if o["kind"] == "NetworkPolicy"]


def test_replicas_ingest_the_same_documents_before_they_are_ready(rendered: Rendered) -> None:
    for case, volume in (
        ("keda", {"persistentVolumeClaim": {"claimName": "documents", "readOnly": True}}),
        ("multi-replica", {"configMap": {"name": "handbook"}}),
    ):
        pod = server(rendered[case])
        (corpus,) = (c for c in pod["containers"] if c["name"] == "corpus")
        assert corpus["readinessProbe"]["exec"]["command"] == ["test", "-f", "/tmp/ingested"]
        assert {"name": "corpus", **volume} in pod["volumes"]
    assert "demo-kvstitch-0.demo-kvstitch-pods.search:8000" in rendered["secret-values"]["notes"]


def test_dashboards_and_rules_come_from_files(ops_tools: None, tmp_path: Path) -> None:
    """Every file becomes an object, with what templates would mistake for their own left alone."""
    chart = tmp_path / "kvstitch"
    shutil.copytree(tools.CHART, chart)
    (chart / "files/dashboards/Cache USE.json").write_text('{"legend": "{{tier}}", "n": 1}')
    rule = {"alert": "Down", "expr": "up == 0", "annotations": {"summary": "{{ $labels.pod }}"}}
    groups = {"groups": [{"name": "x", "rules": [rule]}]}
    (chart / "files/rules/alerts_test.yml").write_text(yaml.safe_dump(groups))
    values = (tools.VALUES / "gpu.yaml").read_text()
    (answer,) = tools.chart({"values": values, "chart": str(chart), "schemas": KUBERNETES})
    assert answer["problems"] == []
    dashboard = one(answer, "ConfigMap", "cache-use")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["Cache USE.json"]) == {"legend": "{{tier}}", "n": 1}
    assert one(answer, "PrometheusRule", "alerts-test")["spec"] == groups


def test_a_scraper_shows_the_key_that_it_was_given(rendered: Rendered) -> None:
    (endpoint,) = one(rendered["hardened"], "ServiceMonitor", "")["spec"]["endpoints"]
    key = {"name": "kvstitch-scraper", "key": "api-key"}
    assert endpoint["authorization"] == {"credentials": key}
    (endpoint,) = one(rendered["gpu"], "ServiceMonitor", "")["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_the_files_are_those_of_the_compose_file(rendered: Rendered) -> None:
    docker = tools.REPOSITORY / "docker"
    for folder, source, pattern, kind in (
        ("dashboards", docker / "grafana" / "dashboards", "*.json", "ConfigMap"),
        ("rules", docker / "prometheus" / "rules", "*.y*ml", "PrometheusRule"),
    ):
        assert (tools.CHART / "files" / folder).resolve() == source
        made = [
            o
            for o in rendered["gpu"]["objects"]
            if o["kind"] == kind
            and o["metadata"]["labels"]["app.kubernetes.io/component"] == "monitoring"
        ]
        assert len(made) == len(list(source.glob(pattern)))
