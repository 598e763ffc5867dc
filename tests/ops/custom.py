"""Strict schemas of the custom resources in the chart, of the fields it uses and no others.

Kubernetes' own schemas hold no custom resources. Written from the field lists in the operators'
API references (monitoring.coreos.com/v1, keda.sh/v1alpha1, ray.io/v1). Pods inside a custom
resource are checked by Kubernetes' schemas.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
STRINGS: Schema = {"type": "object", "additionalProperties": STRING}
COUNT: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d|w|y))+$"}


def strict(required: str, **properties: Schema) -> Schema:
    """An object of these properties alone; `required` names some, separated by blanks."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required.split(),
    }


def resource(spec: Schema) -> Schema:
    metadata = strict("name labels", name=STRING, labels=STRINGS, annotations=STRINGS)
    parts = {"apiVersion": STRING, "kind": STRING, "metadata": metadata, "spec": spec}
    return strict(" ".join(parts), **parts)


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


RULE = strict("expr", record=STRING, alert=STRING, expr=STRING, labels=STRINGS,
              annotations=STRINGS, keep_firing_for=DURATION, **{"for": DURATION})  # fmt: skip
PROMETHEUS_TRIGGER = strict(
    "type name metricType metadata",
    type={"const": "prometheus"},
    name=STRING,
    metricType={"enum": ["AverageValue", "Value"]},
    # KEDA takes all of them as strings.
    metadata=strict(
        "serverAddress query threshold",
        serverAddress={"type": "string", "pattern": "^https?://"},
        query=STRING,
        threshold={"type": "string", "pattern": r"^[0-9.]+$"},
        ignoreNullValues={"enum": ["true", "false"]},
    ),
)

SCALE_DOWN = strict(
    "stabilizationWindowSeconds policies",
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=many(
        strict(
            "type value periodSeconds",
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        )
    ),
)
# Of `ray start`; KubeRay takes all of them as strings.
RAY_FLAGS = ("num-cpus", "port", "ray-client-server-port", "object-store-memory")
RAY_START = strict("", **dict.fromkeys(RAY_FLAGS, STRING))
POD_TEMPLATE: Schema = {"type": "object", "required": ["metadata", "spec"]}

SCHEMAS: dict[tuple[str, str], Schema] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): resource(
        strict(
            "selector endpoints",
            selector=strict("matchLabels", matchLabels=STRINGS),
            namespaceSelector=strict("", matchNames=many(STRING)),
            endpoints=many(
                strict(
                    "port",
                    port=STRING,
                    path=STRING,
                    interval=DURATION,
                    authorization=strict(
                        "credentials", credentials=strict("name key", name=STRING, key=STRING)
                    ),
                )
            ),
        )
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): resource(
        strict(
            "groups",
            groups=many(
                strict("name rules", name=STRING, interval=DURATION, rules=many(RULE)),
            ),
        )
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): resource(
        strict(
            "scaleTargetRef triggers",
            scaleTargetRef=strict("name", apiVersion=STRING, kind=STRING, name=STRING),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            cooldownPeriod=COUNT,
            advanced=strict(
                "",
                horizontalPodAutoscalerConfig=strict("", behavior=strict("", scaleDown=SCALE_DOWN)),
            ),
            triggers=many(PROMETHEUS_TRIGGER),
        )
    ),
    ("ray.io/v1", "RayCluster"): resource(
        strict(
            "headGroupSpec",
            rayVersion=STRING,
            headGroupSpec=strict(
                "rayStartParams template",
                serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                rayStartParams=RAY_START,
                template=POD_TEMPLATE,
            ),
            workerGroupSpecs=many(
                strict(
                    "groupName rayStartParams template",
                    groupName=STRING,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    rayStartParams=RAY_START,
                    template=POD_TEMPLATE,
                )
            ),
        )
    ),
}


def pod_templates(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods that a custom resource describes."""
    if item["kind"] != "RayCluster":
        return []
    groups = [item["spec"]["headGroupSpec"], *item["spec"].get("workerGroupSpecs", ())]
    return [group["template"] for group in groups]
