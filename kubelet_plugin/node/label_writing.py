"""Writes a Node's labels over the API; label_patch() decides what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.api.objects import Node
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ConflictError, ForbiddenError, InvalidError, KubeError, NotFoundError
from dracaena.kubelet_plugin.discovery.publish.node_label_patch import label_patch

TRIES: Final = 5
"""Attempts at one write. kubelet writes its Node's status every few minutes, so two collisions in a row are rare, and
five mean that some program writes the Node all the time."""


class NodeLabelsError(TemporaryError):
    """The Node does not have its labels; the text says why, and who can change that."""


def write_node_labels(client: KubeClient, name: str, wanted: Mapping[str, str], driver: str) -> tuple[str, ...]:
    """Make the Node's labels as wanted, and return the names of those that were changed or removed.

    A patch names the version of the Node that it was made for, so it never overwrites or removes what somebody changed
    in between; the Node is then read again. Costs one read if nothing has to change. Raises NodeLabelsError.
    """
    for _ in range(TRIES):
        try:
            return _write_once(client, name, wanted, driver)
        except ConflictError:
            continue
        except KubeError as error:
            raise NodeLabelsError(_reason(name, error)) from error
    raise NodeLabelsError(
        f"Node {name} was changed by somebody else {TRIES} times between our reading and our writing: it keeps the "
        "labels that it has; `kubectl get node --show-managed-fields -o yaml` tells who writes it"
    )


def _write_once(client: KubeClient, name: str, wanted: Mapping[str, str], driver: str) -> tuple[str, ...]:
    node = client.get(Node, name).metadata
    patch = label_patch(wanted, node.labels, node.annotations, driver)
    if patch is None:
        return ()
    patch["metadata"]["resourceVersion"] = node.resource_version
    client.merge_patch(Node, name, patch)
    return tuple(patch["metadata"].get("labels", ()))


def _reason(name: str, error: KubeError) -> str:
    """Return who must act. A policy refuses with 422 (its default), rights with 403."""
    if isinstance(error, NotFoundError):
        return (
            f"there is no Node {name}: expected a name as `kubectl get nodes` prints it, or the node is not joined yet"
        )
    if isinstance(error, ForbiddenError):
        return (
            f"we may not read or change Node {name}: {error.message}; an admin must grant get and patch on nodes, as "
            "the chart does with nodeLabels.enabled"
        )
    if isinstance(error, InvalidError):
        return f"the API server or a policy of the cluster refuses the labels of Node {name}: {error.message}"
    return f"cannot reach Node {name} or change it: {error}"
