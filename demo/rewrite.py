"""Pods that ask for nvidia.com/gpu get claims instead, in namespaces with the label ``gpu.dracaena.dev/rewrite``.

In a cluster that is a policy of the chart, in CEL, which the API server runs (deploy/helm/dracaena, rewrite.yaml; how
containers come to share a claim: docs/design/admission.md). The embedded server runs no policies, so
this does the same to a new pod, with the chart's default values: whole GPUs only, of any class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dracaena.api.extended_resources import GPUS
from dracaena.api.gpu_templates import GpuTemplate
from dracaena.api.names import DEFAULT_DRIVER_NAME, rewrite_label
from dracaena.api.quantity import NANO, read_quantity

Document = dict[str, Any]

_LABEL: Final = rewrite_label(DEFAULT_DRIVER_NAME)
_CLASS: Final = f"{DEFAULT_DRIVER_NAME}/class"
_ENTRY: Final = "dracaena"
_LISTS: Final = ("containers", "initContainers")


def rewritten(pod: Document, namespace: Document) -> Document:
    """Return a new pod as the chart's policy leaves it in this namespace."""
    labels = namespace["metadata"].get("labels") or {}
    own = pod["metadata"].get("labels") or {}
    if labels.get(_LABEL) != "true" or own.get(_LABEL, "true") == "false" or not _asks_rightly(pod["spec"]):
        return pod
    asked = (pod["metadata"].get("annotations") or {}).get(_CLASS, labels.get(_CLASS, ""))
    device_class = asked if "." in asked else f"{asked}.{DEFAULT_DRIVER_NAME}" if asked else DEFAULT_DRIVER_NAME
    spec = pod["spec"]
    entries = {name: list(_entries(spec, name)) for name in _LISTS}
    made = {
        entry: {"name": entry, "resourceClaimTemplateName": GpuTemplate(count, device_class).name}
        for name in _LISTS
        for entry, count in entries[name]
        if count and (name == "containers" or entry.startswith(f"{_ENTRY}-init-"))
    }
    changed = {
        name: [_claiming(one, *entry) for one, entry in zip(spec[name], entries[name], strict=True)]
        for name in _LISTS
        if spec.get(name)
    }
    return pod | {"spec": spec | changed | {"resourceClaims": [*(spec.get("resourceClaims") or ()), *made.values()]}}


def _asks_rightly(spec: Document) -> bool:
    """Whether a container asks for GPUs, and all do so in whole numbers with no other requests than limits: the rest is
    refused by the API server, as it is."""
    resources = [one.get("resources") or {} for name in _LISTS for one in spec.get(name) or ()]
    limits = [_amount(one, "limits") for one in resources]
    requests = [_amount(one, "requests") for one in resources]
    pairs = zip(limits, requests, strict=True)
    is_right = all(asked in (None, limit) and (limit or 0) >= 0 and (limit or 0) % NANO == 0 for limit, asked in pairs)
    return is_right and any(limits)


def _amount(resources: Mapping[str, Any], part: str) -> int | None:
    amount = (resources.get(part) or {}).get(GPUS)
    return None if amount is None else read_quantity(amount).quantity.nano


def _count(container: Document) -> int:
    return (_amount(container.get("resources") or {}, "limits") or 0) // NANO


def _entries(spec: Document, name: str) -> Iterator[tuple[str, int]]:
    """The claim of each container of a list, and its GPUs. An init container ends before the containers begin: it
    shares with the first that has as many."""
    counts = [_count(one) for one in spec["containers"]]
    for place, container in enumerate(spec.get(name) or ()):
        count = _count(container)
        if name == "containers":
            yield f"{_ENTRY}-{place}", count
            continue
        shared = next((at for at, other in enumerate(counts) if other >= count), None)
        yield (f"{_ENTRY}-init-{place}" if shared is None else f"{_ENTRY}-{shared}"), count


def _claiming(container: Document, entry: str, count: int) -> Document:
    """A container with its claim in place of the resource."""
    if not count:
        return container
    resources = dict(container["resources"])
    for part in ("limits", "requests"):
        left = {name: amount for name, amount in (resources.pop(part, None) or {}).items() if name != GPUS}
        resources |= {part: left} if left else {}
    return container | {"resources": resources | {"claims": [*(resources.get("claims") or ()), {"name": entry}]}}
