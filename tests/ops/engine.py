"""Renders and validates the chart. Runs in .venv/ops, as `python engine.py CHART < requests`.

A request is {"values": YAML} with "schemas": Kubernetes versions to validate strictly against, and
"chart": another folder. The answer to it is {"error": None or Helm's words, "objects": [...],
"notes": text, "problems": [...]}. Rendering is Helm's own code, values.schema.json included.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import custom
import helm_python as helm
import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate import utils

# It reads two megabytes of definitions again for every object.
utils.schema_contents = functools.cache(utils.schema_contents)


def answer(request: dict[str, Any], chart: str) -> dict[str, Any]:
    given = yaml.safe_load(request["values"]) or {}
    try:
        with helm.Chart.load(request.get("chart", chart)) as loaded:
            loaded.validate_schema(loaded.merge_values(given))
            files = loaded.render(given, name="demo", namespace="search", is_install=True)
    except helm.HelmError as error:
        return {"error": str(error), "objects": [], "notes": "", "problems": []}
    notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
    objects = [
        item
        for name, text in sorted(files.items())
        if not name.endswith("NOTES.txt")
        for item in yaml.safe_load_all(text)
        if item is not None
    ]
    problems = [
        f"{item['kind']} {item['metadata']['name']}: {problem}"
        for version in request.get("schemas", ())
        for item in objects
        if (problem := check(json.dumps(item, sort_keys=True), version))
    ]
    return {"error": None, "objects": objects, "notes": notes, "problems": problems}


@functools.cache
def check(item_json: str, version: str) -> str | None:
    """What is wrong with one object, None if nothing is."""
    item = json.loads(item_json)
    try:
        if (schema := custom.SCHEMAS.get((item["apiVersion"], item["kind"]))) is not None:
            jsonschema.Draft202012Validator(schema).validate(item)
            for template in custom.pod_templates(item):
                pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
                kubernetes_validate.validate(
                    {**pod, "metadata": {"name": "in-a-custom-resource"}}, version, strict=True
                )
        else:
            kubernetes_validate.validate(item, version, strict=True)
    except jsonschema.ValidationError as error:
        return f"{version}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
    except utils.SchemaNotFoundError as error:
        return error.message
    return None


def main() -> None:
    answers = [answer(request, sys.argv[1]) for request in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
