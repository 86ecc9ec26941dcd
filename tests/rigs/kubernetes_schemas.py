"""Checker of rendered Kubernetes objects; a program for the environment `.venv/kubernetes`.

    .venv/kubernetes/bin/python tests/rigs/kubernetes_schemas.py < rendered.yaml

prints a JSON object: the documents, and what is wrong with them. Kubernetes' own kinds are checked
against its strict schemas, and so is each pod template of a RayCluster. The schemas of KubeRay and
of the Prometheus operator are in no package, so their fields are checked against the list here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import yaml

VERSION = "1.37"
POD = "a pod template"
LABELS = "an object of texts"
OBJECT = "an object"
KEY = {"name": str, "key": str, "optional": bool}
GROUP = {"rayStartParams": LABELS, "resources": LABELS, "labels": LABELS, "template": POD}
SHAPES: dict[str, Any] = {
    "ray.io/v1 RayCluster": {
        "rayVersion": str,
        "suspend": bool,
        "enableInTreeAutoscaling": bool,
        "managedBy": str,
        "headServiceAnnotations": LABELS,
        "headGroupSpec": GROUP | {"serviceType": str, "enableIngress": bool, "headService": OBJECT},
        "workerGroupSpecs": [
            GROUP
            | {
                "groupName": str,
                "replicas": int,
                "minReplicas": int,
                "maxReplicas": int,
                "numOfHosts": int,
                "idleTimeoutSeconds": int,
                "suspend": bool,
            }
        ],
    },
    "monitoring.coreos.com/v1 PodMonitor": {
        "selector": OBJECT,
        "namespaceSelector": OBJECT,
        "podTargetLabels": [str],
        "podMetricsEndpoints": [
            {
                "port": str,
                "path": str,
                "scheme": str,
                "interval": str,
                "scrapeTimeout": str,
                "honorLabels": bool,
                "authorization": {"type": str, "credentials": KEY},
                "tlsConfig": {
                    "serverName": str,
                    "insecureSkipVerify": bool,
                    "ca": {"secret": KEY, "configMap": KEY},
                },
            }
        ],
    },
}
NEEDED = {"headGroupSpec", "template", "groupName", "minReplicas", "maxReplicas", "selector"}
"""Fields that must be there wherever a shape has them."""


def problems(document: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a document."""
    kind = f"{document['apiVersion']} {document['kind']}"
    if kind not in SHAPES:
        yield from strict(document)
        return
    if unknown := document.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        yield f"unknown fields {sorted(unknown)}"
    yield from misfits(document["spec"], SHAPES[kind], place="spec")


def strict(document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"


def misfits(found: Any, shape: Any, *, place: str) -> Iterator[str]:
    """Yield where something differs from its shape."""
    if shape == POD:
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        yield from (f"{place}: {why}" for why in strict({**template, "template": found}))
    elif isinstance(shape, list):
        for number, one in enumerate(found if isinstance(found, list) else [None]):
            yield from misfits(one, shape[0], place=f"{place}[{number}]")
    elif isinstance(shape, dict):
        yield from fields(found, shape, place=place)
    elif shape == LABELS:
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            yield f"{place} is not {LABELS}"
    elif not isinstance(found, dict if shape == OBJECT else shape) or (
        shape is int and isinstance(found, bool)
    ):
        yield f"{place} is {found!r}"


def fields(found: Any, shape: dict[str, Any], *, place: str) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{place} is {found!r}"
        return
    yield from (f"{place}.{name} is unknown" for name in found.keys() - shape.keys())
    yield from (f"{place}.{name} is missing" for name in (NEEDED & shape.keys()) - found.keys())
    for name in found.keys() & shape.keys():
        yield from misfits(found[name], shape[name], place=f"{place}.{name}")


def main() -> None:
    """Check what is on the standard input."""
    documents = list(yaml.safe_load_all(sys.stdin))
    wrong = [
        f"{document['kind']} {document['metadata']['name']}: {why}"
        for document in documents
        for why in problems(document)
    ]
    json.dump({"documents": documents, "problems": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
