"""The overlays for Kubernetes render, keep to the schemas, and agree with what they run.

They are checked and not run: no Kubernetes is at hand.
"""

from __future__ import annotations

import json
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plexsvc import config as configuration
from plexsvc.cluster.config import ClusterConfig

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy" / "k8s"
BIN = Path(sys.prefix) / "kubernetes" / "bin"
SECRETS = "ray_token=0123456789abcdef\ndatabase=postgresql+psycopg://plex:secret@db:5432/plex\n"
BY_HAND = {"plexsvc-tls", "plexsvc-metrics"}
"""Secrets that an admin makes."""

Document = dict[str, Any]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the overlays in which every secret is there."""
    assert (BIN / "kubectl").exists(), f"no {BIN}/kubectl: `make test` installs it there"
    shutil.copytree(K8S, tmp_path / "k8s")
    for overlay in (tmp_path / "k8s" / "overlays").iterdir():
        (overlay / "secrets.env").write_text(SECRETS)
    return tmp_path / "k8s"


def checked(tree: Path, overlay: str) -> dict[str, list[Any]]:
    """Return the documents of an overlay, and what is wrong with them."""
    rendered = subprocess.run(
        [BIN / "kubectl", "kustomize", tree / "overlays" / overlay],
        capture_output=True,
        text=True,
        check=True,
    )
    done = subprocess.run(
        [BIN / "python", ROOT / "tests" / "rigs" / "kubernetes_schemas.py"],
        input=rendered.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


def ray_cluster(documents: list[Document]) -> Document:
    (found,) = (one["spec"] for one in documents if one["kind"] == "RayCluster")
    return dict(found)


def pods(documents: list[Document]) -> list[Document]:
    cluster = ray_cluster(documents)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def containers(documents: list[Document]) -> list[Document]:
    return [one for pod in pods(documents) for one in pod["containers"]]


def config_of(documents: list[Document], place: Path) -> ClusterConfig:
    """Return the service's configuration as the pod fills it in."""
    (table,) = (one["data"] for one in documents if one["kind"] == "ConfigMap")
    filled = string.Template(table["cluster.toml"]).substitute(
        POD_IP="10.1.2.3", DATABASE="postgresql+psycopg://u:p@db:5432/plex"
    )
    (place / "cluster.toml").write_text(filled)
    return configuration.load(place / "cluster.toml", ClusterConfig)


def named(node: Any, key: str) -> Iterator[Any]:
    """Yield each value that has a name, anywhere in a document."""
    if isinstance(node, dict):
        yield from ([node[key]] if key in node else [])
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from named(one, key)


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_an_overlay_keeps_to_the_schemas_and_names_what_is_there(tree: Path, overlay: str) -> None:
    found = checked(tree, overlay)
    documents = found["documents"]
    assert found["problems"] == []
    there = {kind: set[str]() for kind in ("Secret", "ConfigMap", "PersistentVolumeClaim")}
    for one in documents:
        there.setdefault(one["kind"], set()).add(one["metadata"]["name"])
    cluster = ray_cluster(documents)
    keys = {one["name"] for one in named(documents, "secretKeyRef")}
    secrets = keys | set(named(cluster, "secretName"))
    assert secrets <= there["Secret"] | BY_HAND
    assert set(named(cluster, "claimName")) == there["PersistentVolumeClaim"]
    assert {one["name"] for one in named(cluster, "configMap")} == there["ConfigMap"]
    (secret,) = (one for one in documents if one["kind"] == "Secret")
    assert {one["key"] for one in named(documents, "secretKeyRef")} == secret["data"].keys()
    assert {one["metadata"]["namespace"] for one in documents} == {"plexsvc"}
    assert {c["image"].rpartition(":")[0] for c in containers(documents)} == {
        "registry.example/plexsvc"
    }


def test_pools_paths_and_ports_are_those_of_the_configuration(tree: Path, tmp_path: Path) -> None:
    documents = checked(tree, "gpu")["documents"]
    config = config_of(documents, tmp_path)
    groups = ray_cluster(documents)["workerGroupSpecs"]
    pools = [arg for g in groups for arg in g["template"]["spec"]["containers"][0]["args"]]
    assert {p.removeprefix("plex-pool=") for p in pools if p.startswith("plex-pool=")} == set(
        config.ray.pools
    )
    roots = {*config.router.model_roots, config.router.checkpoint_root}
    for pod in pods(documents):
        mounts = [m["mountPath"] for c in pod["containers"] for m in c["volumeMounts"]]
        assert {str(root.parent) for root in roots if root} <= set(mounts), pod
    ports = {
        port["name"]: port["containerPort"]
        for container in containers(documents)
        for port in container.get("ports", ())
    }
    (service,) = (one for one in documents if one["kind"] == "Service")
    reached = {ports[one["targetPort"]] for one in service["spec"]["ports"]}
    listens = {config.listen, config.router.http_listen}
    assert reached == {int(one.rpartition(":")[2]) for one in listens}
    (monitor,) = (one for one in documents if one["kind"] == "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_only_the_cluster_of_the_queue_waits_for_it_and_tenants_reach_two_ports(tree: Path) -> None:
    documents = checked(tree, "gpu")["documents"]
    label = "kueue.x-k8s.io/queue-name"
    assert [d["kind"] for d in documents if label in d["metadata"].get("labels", ())] == [
        "RayCluster"
    ]
    policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    opened = {
        port["port"]
        for policy in policies
        for rule in policy.get("ingress", ())
        if any("namespaceSelector" in peer for peer in rule["from"])
        for port in rule["ports"]
    }
    assert opened == {50051, 8090}
    assert all(rule["from"] for policy in policies for rule in policy.get("ingress", ()))


def test_what_containers_run_is_in_the_image(tree: Path) -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    assert "COPY deploy/ray deploy/ray" in text
    for container in containers(checked(tree, "gpu")["documents"]):
        program = next(word for word in container["command"] if word not in {"tini", "--"})
        if program.startswith("/opt/plexsvc/"):
            assert (ROOT / program.removeprefix("/opt/plexsvc/")).exists()
    (user,) = set(named(pods(checked(tree, "cpu")["documents"]), "runAsUser"))
    assert f"--uid {user} " in text


MISTAKES = [
    ("base/storage.yaml", "accessModes: [ReadWriteOnce]", "accessMode: x", "accessMode"),
    ("base/raycluster.yaml", "rayVersion:", "rayversion:", "rayversion is unknown"),
    ("base/raycluster.yaml", "shareProcessNamespace", "shareProcesses", "shareProcesses"),
    ("pools/cpu/group.yaml", "maxReplicas: 64", 'maxReplicas: "64"', "maxReplicas is '64'"),
    ("pools/gpu/train.yaml", "groupName:", "name:", "groupName is missing"),
    ("pools/gpu/rollout.yaml", "runAsNonRoot: true", "runAsNonRoot: 1", "not of type 'boolean'"),
    ("monitoring/podmonitor.yaml", "path: /metrics", "metricsPath: /", "metricsPath is unknown"),
    ("base/network.yaml", "podSelector: {matchLabels", "podSelector: {labels", "'labels'"),
]
"""File, what it says, what else it might say, and what the check says of that."""


def test_a_field_that_a_schema_does_not_have_is_found(tree: Path) -> None:
    for file, old, new, _ in MISTAKES:
        text = (tree / file).read_text()
        assert old in text
        (tree / file).write_text(text.replace(old, new))
    found = checked(tree, "gpu")["problems"]
    assert [why for *_, why in MISTAKES if not any(why in one for one in found)] == [], found


def test_an_overlay_without_its_secrets_does_not_render(tree: Path) -> None:
    (tree / "overlays" / "cpu" / "secrets.env").unlink()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        checked(tree, "cpu")
    assert "secrets.env" in caught.value.stderr
