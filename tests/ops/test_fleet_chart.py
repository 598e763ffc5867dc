"""The chart's fleet: gateways and workers apart, who reaches whom, and what scales and drains."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from kvstitch.service.settings import all_settings, load
from tests.ops import tools
from tests.ops.conftest import Rendered
from tests.ops.test_chart import EVERY, one, pods

FLEETS = [case for case in EVERY if case.startswith("fleet")]
OWN = [case for case in FLEETS if case != "fleet-ray"]  # whose workers are the chart's own pods
# Settings of gateways and workers that are on several machines.
BETWEEN = {"KVSTITCH_WORKER_ADDRESSES", "KVSTITCH_FLEET_SECRET"}
IN_SECRETS = {
    "KVSTITCH_DATABASE": "postgresql://kvstitch@db/kvstitch",
    "KVSTITCH_FLEET_SECRET": "0123456789abcdef0123456789abcdef",
    "KVSTITCH_REDIS_URL": "redis://redis:6379/0",
}
Pod = dict[str, Any]


def gateway(answer: dict[str, Any]) -> Pod:
    spec: Pod = one(answer, "Deployment", "-gateway")["spec"]["template"]["spec"]
    return spec


def worker(answer: dict[str, Any]) -> Pod:
    spec: Pod = one(answer, "StatefulSet", "-worker")["spec"]["template"]["spec"]
    return spec


def environment(answer: dict[str, Any], pod: Pod) -> dict[str, str]:
    """What the pod's first container sees; of Secrets NAME/KEY."""
    container = pod["containers"][0]
    names = [s["configMapRef"]["name"] for s in container["envFrom"]]
    seen = {k: v for name in names for k, v in one(answer, "ConfigMap", name)["data"].items()}
    for entry in container["env"]:
        secret = entry.get("valueFrom", {}).get("secretKeyRef", {})
        seen[entry["name"]] = entry.get("value", f"{secret.get('name')}/{secret.get('key')}")
    return seen


def policy(answer: dict[str, Any], ending: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(answer, "NetworkPolicy", ending)["spec"]
    return spec


def component(peer: dict[str, Any]) -> str:
    labels: dict[str, str] = peer["podSelector"]["matchLabels"]
    return labels["app.kubernetes.io/component"]


@pytest.mark.parametrize("case", OWN)
def test_gateways_find_the_workers_by_their_service(rendered: Rendered, case: str) -> None:
    answer = rendered[case]
    service = one(answer, "Service", "-worker")
    stateful = one(answer, "StatefulSet")
    (container,) = worker(answer)["containers"]
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert stateful["spec"]["serviceName"] == name
    assert service["spec"]["clusterIP"] == "None"
    # One that drains stays reachable until its last answer, one that loads shows that it does.
    assert service["spec"]["publishNotReadyAddresses"] is True
    told = environment(answer, gateway(answer))["KVSTITCH_WORKER_ADDRESSES"]
    assert told == f"dns://{name}:{port}"
    assert container["args"] == ["kvstitch", "worker", "--listen", f"tcp://0.0.0.0:{port}"]
    assert container["ports"] == [{"name": "worker", "containerPort": port}]
    labels = stateful["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels


@pytest.mark.parametrize("case", OWN)
def test_only_gateways_reach_workers(rendered: Rendered, case: str) -> None:
    answer = rendered[case]
    (rule,) = policy(answer, "-worker")["ingress"]
    assert [component(peer) for peer in rule["from"]] == ["gateway"]
    assert rule["ports"] == [{"port": "worker", "protocol": "TCP"}]
    (out,) = policy(answer, "-gateway-fleet")["egress"]
    assert [component(peer) for peer in out["to"]] == ["worker"]
    ports = [p["port"] for r in policy(answer, "kvstitch-worker" if "local" not in case else
             "answers-worker")["egress"] for p in r["ports"]]  # fmt: skip
    database = {"fleet-gpu": 6432}.get(case, 5432)
    assert database not in ports  # workers need no database
    outward = [p["port"] for r in policy(answer, "-gateway")["egress"] for p in r["ports"]]
    assert database in outward


@pytest.mark.parametrize("case", FLEETS)
def test_gateways_and_workers_share_a_secret_and_their_settings(
    rendered: Rendered, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = rendered[case]
    theirs = [environment(answer, gateway(answer))]
    if case in OWN:
        theirs.append(environment(answer, worker(answer)))
        assert "KVSTITCH_DATABASE" not in theirs[1]
        # Each of so many gateways may send 256.
        gateways = {"fleet": 2, "fleet-gpu": 8, "fleet-local": 6}[case]
        assert theirs[1]["KVSTITCH_MAX_WAITING"] == str(256 * gateways)
    assert len({each["KVSTITCH_FLEET_SECRET"] for each in theirs}) == 1
    assert theirs[0]["KVSTITCH_DATABASE"]
    assert theirs[0]["KVSTITCH_SSD_TIER_GIB"] == "0"  # nothing that a deletion would wait for
    known = {f"KVSTITCH_{name.upper()}" for name in all_settings().model_fields} | BETWEEN
    for seen in theirs:
        mine = {n: v for n, v in seen.items() if n.startswith("KVSTITCH_")}
        assert set(mine) <= known
        with monkeypatch.context() as shell:
            for name, value in mine.items():
                if name.removeprefix("KVSTITCH_").lower() in all_settings().model_fields:
                    shell.setenv(name, IN_SECRETS.get(name, value))
            settings = load()
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)


def test_each_part_has_its_own_places_and_devices(rendered: Rendered) -> None:
    answer = rendered["fleet-gpu"]
    front, back = gateway(answer), worker(answer)
    assert front["nodeSelector"] == {"pool": "cpu"} and "tolerations" not in front
    assert back["nodeSelector"] == {"nvidia.com/gpu.present": "true"} and back["tolerations"]
    assert back["runtimeClassName"] == "nvidia" and "runtimeClassName" not in front
    assert back["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in front["containers"][0]["resources"]["limits"]
    assert (front["containers"][0]["image"], back["containers"][0]["image"]) == (
        "kvstitch:0.2.0-cpu",
        "kvstitch:0.2.0-cuda",
    )
    assert environment(answer, front)["KVSTITCH_DEVICE"] == "cpu"
    assert environment(answer, back)["KVSTITCH_DEVICE"] == "cuda"


def test_the_ssd_tier_is_nine_tenths_of_what_a_worker_has(rendered: Rendered) -> None:
    for case, gib in (("fleet-gpu", 3500), ("fleet-local", 800), ("fleet", 36)):
        answer = rendered[case]
        told = environment(answer, worker(answer))["KVSTITCH_SSD_TIER_GIB"]
        assert float(told) == pytest.approx(0.9 * gib)
    (claim,) = one(rendered["fleet-gpu"], "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "local-nvme"
    assert claim["spec"]["resources"]["requests"]["storage"] == "3500Gi"
    kept = one(rendered["fleet-gpu"], "StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Delete", "whenScaled": "Delete"}
    # Two workers of a node never share a folder.
    local = worker(rendered["fleet-local"])
    (mount,) = (m for m in local["containers"][0]["volumeMounts"] if m["name"] == "kv")
    assert mount["subPathExpr"] == "$(POD_NAME)"
    assert "volumeClaimTemplates" not in one(rendered["fleet-local"], "StatefulSet")["spec"]


@pytest.mark.parametrize("case", OWN)
def test_updates_and_evictions_take_one_at_a_time(rendered: Rendered, case: str) -> None:
    answer = rendered[case]
    for ending in ("-worker", ""):
        (budget,) = (
            item["spec"]
            for item in answer["objects"]
            if item["kind"] == "PodDisruptionBudget"
            and item["metadata"]["name"].endswith("-worker") == bool(ending)
        )
        assert budget["maxUnavailable"] == 1
    stateful = one(answer, "StatefulSet")["spec"]
    assert stateful["updateStrategy"] == {"type": "RollingUpdate"} and stateful["minReadySeconds"]
    surge = one(answer, "Deployment", "-gateway")["spec"]["strategy"]["rollingUpdate"]
    assert surge == {"maxSurge": 1, "maxUnavailable": 0}
    drain = float(environment(answer, worker(answer))["KVSTITCH_DRAIN_TIMEOUT_S"])
    for pod in (gateway(answer), worker(answer)):
        assert pod["terminationGracePeriodSeconds"] >= drain + 30
    (container,) = worker(answer)["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "worker"}


def test_what_scales_names_what_is_there(rendered: Rendered) -> None:
    for case in OWN:
        answer = rendered[case]
        there = {(o["kind"], o["metadata"]["name"]): o for o in answer["objects"]}
        scaled = set()
        for item in answer["objects"]:
            if item["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
                target = item["spec"]["scaleTargetRef"]
                found = there[target["kind"], target["name"]]
                assert "replicas" not in found["spec"]
                scaled.add(target["kind"])
        assert (
            scaled
            == {
                "fleet": set(),
                "fleet-gpu": {"Deployment", "StatefulSet"},
                "fleet-local": {"Deployment"},
            }[case]
        )
    trigger = one(rendered["fleet-gpu"], "ScaledObject", "-worker")["spec"]["triggers"][0]
    # Each gateway reports each worker: counted once.
    assert "sum(max by (worker) (kvstitch_backlog_seconds{" in trigger["metadata"]["query"]


def test_generated_and_given_secrets(rendered: Rendered) -> None:
    made = one(rendered["fleet-local"], "Secret", "-fleet")["data"]["fleet-secret"]
    assert re.fullmatch(rb"[a-zA-Z0-9]{64}", base64.b64decode(made))
    names = {o["metadata"]["name"] for o in rendered["fleet"]["objects"] if o["kind"] == "Secret"}
    assert names == {"demo-kvstitch-redis"}
    for secret in ("database-password", "example-fleet-secret-of-32-chars-or-more"):
        kinds = {o["kind"] for o in rendered["fleet-gpu"]["objects"] if secret in json.dumps(o)}
        assert kinds <= {"Secret"}


@pytest.mark.parametrize("case", FLEETS)
def test_what_is_mounted_and_selected_exists(rendered: Rendered, case: str) -> None:
    answer = rendered[case]
    claims = {
        claim["metadata"]["name"]
        for item in answer["objects"]
        if item["kind"] == "StatefulSet"
        for claim in item["spec"].get("volumeClaimTemplates", ())
    }
    for pod in pods(answer):
        volumes = {v["name"] for v in pod["volumes"]} | claims
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
    present = set(re.findall(r'app.kubernetes.io/component": "([a-z-]+)"', json.dumps(
        [metadata(item) for item in answer["objects"]])))  # fmt: skip
    for item in answer["objects"]:
        if item["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            spec = item["spec"]
            chosen = spec.get("podSelector") or spec["selector"]
            chosen = chosen.get("matchLabels", chosen)
            name = chosen.get("app.kubernetes.io/component")
            assert name is None or name in present, item["metadata"]["name"]


def metadata(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the pods that an object makes."""
    if item["kind"] == "Pod":
        return [item["metadata"]]
    if item["kind"] == "RayCluster":
        groups = [item["spec"]["headGroupSpec"], *item["spec"]["workerGroupSpecs"]]
        return [group["template"]["metadata"] for group in groups]
    template = item.get("spec", {}).get("template")
    return [template["metadata"]] if isinstance(template, dict) else []


def test_workers_as_actors_of_a_ray_cluster(rendered: Rendered) -> None:
    answer = rendered["fleet-ray"]
    assert not [o for o in answer["objects"] if o["kind"] == "StatefulSet"]
    cluster = one(answer, "RayCluster")
    head = f"{cluster['metadata']['name']}-head-svc"  # as KubeRay names it
    told = environment(answer, gateway(answer))
    assert told["KVSTITCH_WORKER_ADDRESSES"] == f"ray://{head}:10001"  # Ray's client server
    spec = cluster["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (group,) = spec["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert group["replicas"] == 4 and container["resources"]["limits"]["nvidia.com/gpu"] == 1
    seen = environment(answer, group["template"]["spec"])
    assert seen["KVSTITCH_FLEET_SECRET"] == told["KVSTITCH_FLEET_SECRET"] == "fleet/fleet-secret"
    up, bulk = (
        one(answer, "Job", name)
        for name in [o["metadata"]["name"] for o in answer["objects"] if o["kind"] == "Job"][::-1]
    )
    for job, command in (
        (up, "cluster up --workers 4 --gpus-per-worker 1 --ports 5700-5763"),
        (bulk, "bulk --input s3://bucket/documents --collection handbook"),
    ):
        shell, dash_c, script, _, *args = job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert (shell, dash_c, args) == ("sh", "-c", ["kvstitch", *command.split()])
        assert f"--address={head}:6379" in script  # its own node of the cluster
    version = re.search(r"(?m)^ray==(.+)$", (tools.REPOSITORY / "constraints.txt").read_text())
    assert version and spec["rayVersion"] == version[1]


def test_a_job_that_would_do_something_else_has_another_name(ops_tools: None) -> None:
    """Kubernetes refuses changes of a Job."""
    given = (tools.VALUES / "fleet-ray.yaml").read_text()
    same, again, more = (
        {o["metadata"]["name"] for o in answer["objects"] if o["kind"] == "Job"}
        for answer in tools.chart(
            {"values": given},
            {"values": given},
            {"values": given.replace("replicas: 4", "replicas: 5")},
        )
    )
    assert same == again
    assert len(same & more) == 1  # the bulk run


def test_without_a_fleet_its_values_change_nothing(ops_tools: None) -> None:
    password = "redis: {auth: {password: example-password}}"
    unused = (
        "fleet: {enabled: false, secret: {value: 0123456789abcdef0123456789abcdef}, "
        "gateway: {replicas: 9}, worker: {replicas: 9, device: cuda, "
        "ssd: {type: hostPath, sizeGib: 9}, keda: {enabled: true}}}\n"
        "ray: {port: 7000}\nbulk: {args: [x]}\n"
    )
    before, after = tools.chart({"values": password}, {"values": f"{unused}{password}"})
    assert before["objects"] and before == after
    names = sorted((o["kind"], o["metadata"]["name"]) for o in before["objects"])
    assert ("StatefulSet", "demo-kvstitch") in names
    assert not [name for _, name in names if re.search("gateway|worker|fleet|ray", name)]


def test_replicas_that_share_a_database_need_nothing_else(ops_tools: None) -> None:
    values = "{server: {replicas: 2}, database: {existingSecret: db}}"
    (answer,) = tools.chart({"values": values})
    assert answer["error"] is None
    pod = one(answer, "StatefulSet")["spec"]["template"]["spec"]
    assert environment(answer, pod)["KVSTITCH_DATABASE"] == "db/database-url"
    out = policy(answer, "kvstitch-server")["egress"]
    assert 5432 in [port["port"] for rule in out for port in rule["ports"]]
