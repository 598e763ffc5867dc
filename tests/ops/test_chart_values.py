"""Values that the chart refuses: typos by its schema, contradictions by its templates."""

from __future__ import annotations

import pytest

from tests.ops import tools

TYPOS = [
    ("sever: {}", "sever"),
    ("server: {replica: 2}", "replica"),
    ("server: {image: {tagg: x}}", "tagg"),
    ("server: {replicas: two}", "replicas"),
    ("server: {device: rocm}", "device"),
    ("server: {gpu: {count: 2}}", "count"),
    ("settings: {memory_tier_mb: 1}", "memory_tier_mb"),
    ("settings: {codec: int5}", "codec"),
    ("settings: {redis_url: 'redis://x'}", "redis_url"),
    ("redis: {mode: cluster}", "mode"),
    ("redis: {auth: {password: 'a b'}}", "password"),
    ("persistence: {kv: {size: 10Gi}}", "size"),
    ("tenantSecret: {value: secret}", "tenantSecret"),
    ("autoscaling: {keda: {queue: {treshold: 1}}}", "treshold"),
    ("monitoring: {dashbords: {enabled: true}}", "dashbords"),
    ("networkPolicy: {enabled: 'yes'}", "networkPolicy"),
    ("database: {url: 'mysql://x'}", "database"),
    ("fleet: {worker: {ssd: {type: nfs}}}", "ssd"),
    ("fleet: {worker: {device: rocm}}", "device"),
    ("fleet: {gateways: {replicas: 2}}", "gateways"),
    ("fleet: {secret: {value: short}}", "secret"),
    ("settings: {worker_addresses: 'tcp://a:5700'}", "worker_addresses"),
    ("ray: {version: latest}", "version"),
    ("vllm: {image: {tagg: x}}", "tagg"),
    ("bulk: {args: all}", "args"),
]
FLEET = "database: {existingSecret: d}, fleet: {enabled: true}"
IMPOSSIBLE = [
    ("vllm: {enabled: true}", "set model.existingClaim"),
    (f"{{{FLEET}, vllm: {{enabled: true}}}}", "without fleet.enabled"),
    ("server: {replicas: 2}", "corpus.enabled"),
    ("autoscaling: {hpa: {enabled: true}}", "corpus.enabled"),
    ("corpus: {enabled: true}", "corpus.existingClaim or corpus.configMap"),
    ("redis: {mode: external}", "redis.external.url or redis.external.existingSecret"),
    ("model: {source: owner/name}", "model.download=true"),
    ("model: {source: other/model, existingClaim: models}", "below model.mountPath"),
    (
        "{corpus: {enabled: true, configMap: c}, autoscaling: {keda: {enabled: true}}}",
        "prometheusAddress",
    ),
    ("fleet: {enabled: true}", "database.url or database.existingSecret"),
    ("ray: {enabled: true}", "set fleet.enabled too"),
    ("bulk: {enabled: true, args: [x]}", "database.url or database.existingSecret"),
    ("{bulk: {enabled: true}, database: {existingSecret: d}}", "bulk.enabled needs ray.enabled"),
    (f"{{{FLEET}, ray: {{enabled: true}}, bulk: {{enabled: true}}}}", "needs bulk.args"),
    ("database: {url: 'postgresql://a/b', existingSecret: d}", "either database.url or"),
    (f"{{{FLEET}, redis: {{mode: none}}}}", "share KV through Redis or S3"),
    (f"{{{FLEET}, corpus: {{enabled: true, configMap: c}}}}", "ingest once through the Service"),
    (f"{{{FLEET}, server: {{replicas: 2}}}}", "fleet.gateway.replicas"),
    (f"{{{FLEET}, settings: {{workers: 2}}}}", "fleet.worker.replicas"),
    (f"{{{FLEET}, settings: {{drain_timeout_s: 300}}}}", "GracePeriodSeconds must exceed"),
    ("{database: {existingSecret: d}, fleet: {enabled: true, worker: {keda: {enabled: true}}}}",
     "autoscaling.keda.prometheusAddress"),
    ("{database: {existingSecret: d}, fleet: {enabled: true, worker: {ssd: {type: hostPath}}}}",
     "needs fleet.worker.ssd.hostPath"),
    ("{database: {existingSecret: d}, "
     "fleet: {enabled: true, worker: {device: cuda, gpu: {count: 4}}}}", "gpu.count must be 1"),
    ("{database: {existingSecret: d}, ray: {enabled: true}, autoscaling: {keda: "
     "{prometheusAddress: 'http://p:9090'}}, fleet: {enabled: true, "
     "worker: {keda: {enabled: true}}}}",
     "replicas, which kvstitch cluster up starts"),
    ("{database: {existingSecret: d}, fleet: {enabled: true, secret: {existingSecret: f, "
     "value: 0123456789abcdef0123456789abcdef}}}", "fleet.secret: give either"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refusals(ops_tools: None) -> dict[str, str]:
    """Values to what Helm says about them, in one go: starting the engine takes a second."""
    given = [values for values, _ in TYPOS + IMPOSSIBLE]
    answers = tools.chart(*({"values": values} for values in given))
    return {v: a["error"] or "accepted" for v, a in zip(given, answers, strict=True)}


@pytest.mark.parametrize(("values", "named"), TYPOS)
def test_the_schema_rejects_typos(refusals: dict[str, str], values: str, named: str) -> None:
    assert refusals[values].startswith("kvstitch:\n- at '")  # the schema's words, not a template's
    assert named in refusals[values]


@pytest.mark.parametrize(("values", "said"), IMPOSSIBLE)
def test_combinations_that_cannot_work_are_refused(
    refusals: dict[str, str], values: str, said: str
) -> None:
    assert said in refusals[values]
