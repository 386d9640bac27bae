"""The demo's load: its nodes, its manifests, and which of its pods cannot run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from dracaena.api.objects import KubeObject, Pod
from dracaena.demo.cluster import DemoNode
from dracaena.demo.objects import KINDS
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, NotFoundError

NODES = (
    DemoNode("box-7", "7-gpu-box"),
    DemoNode("dgx-1v", "dgx-1v"),
    DemoNode("dgx-a100", "dgx-a100"),
    DemoNode("h100", "h100-x1", role="mig"),
    DemoNode("h100-pcie", "h100-pcie-bridged-numa-3-5", role="shared"),
)
"""Four machines with very different links: switches only, a mesh of NVLinks, NVSwitches, bridged pairs. Pods may share
GPUs of h100-pcie, whose memory is known. One more GPU is divided into MIG devices when pods ask for them."""

WAITING = frozenset({"too-big", "typo"})
"""Pods that cannot run: no node has 16 GPUs, and a policy with a misspelt field is refused."""

NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One YAML file with its documents, in their order."""

    file: str
    documents: tuple[dict[str, Any], ...]

    @property
    def comment(self) -> str:
        """The comment at the top of the file, as one line."""
        lines = (manifest_folder() / self.file).read_text(encoding="utf-8").splitlines()
        head = []
        for line in lines:
            if not line.startswith("#"):
                break
            head.append(line.removeprefix("#").strip())
        return " ".join(head)


def manifest_folder() -> Any:
    """Return the folder of the demo's manifests, as it was installed."""
    return resources.files("dracaena.demo") / "manifests"


def load_manifests() -> tuple[ManifestFile, ...]:
    """Read all manifests, sorted by file name."""
    files = sorted(
        (item for item in manifest_folder().iterdir() if item.name.endswith(".yaml")), key=lambda item: item.name
    )
    return tuple(
        ManifestFile(item.name, tuple(doc for doc in yaml.safe_load_all(item.read_text(encoding="utf-8")) if doc))
        for item in files
    )


def apply(client: KubeClient, manifests: Iterable[ManifestFile]) -> None:
    """Create every object that does not exist yet. Raises KubeError."""
    for manifest in manifests:
        for document in manifest.documents:
            kind = _kind(document)
            try:
                client.create(kind, document, namespace=NAMESPACE if kind.NAMESPACED else "")
            except AlreadyExistsError:
                continue


def delete_pods(client: KubeClient) -> None:
    """Delete every pod of the demo's namespace, as `kubectl delete pods --all` does."""
    for pod in client.list(Pod, namespace=NAMESPACE).items:
        try:
            client.delete(Pod, pod.metadata.name, namespace=NAMESPACE, uid=pod.metadata.uid)
        except NotFoundError:
            continue


def _kind(document: dict[str, Any]) -> type[KubeObject]:
    return KINDS[document["apiVersion"], document["kind"]]
