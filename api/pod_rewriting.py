"""Pods that ask for nvidia.com/gpu get claims instead, in namespaces with the label ``<driver>/rewrite``.

In a cluster that is a policy of the chart, in CEL, which the API server runs (deploy/helm/dracaena, rewrite.yaml; how
containers come to share a claim: docs/design/admission.md). Where no API server runs policies, this does the same to a
new pod, with the chart's default values: whole GPUs only, of any class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dracaena.api.extended_resources import GPUS
from dracaena.api.gpu_templates import GpuTemplate
from dracaena.api.names import DEFAULT_DRIVER_NAME, rewrite_label
from dracaena.api.quantity import NANO, read_quantity

Document = dict[str, Any]

_ENTRY: Final = "dracaena"
_LISTS: Final = ("containers", "initContainers")
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of pods that kubelet runs from a file."""


def opts_in(namespace: Mapping[str, Any], driver: str = DEFAULT_DRIVER_NAME) -> bool:
    """Whether pods of a namespace get claims."""
    return _texts(namespace, "labels").get(rewrite_label(driver)) == "true"


def rewritten(
    pod: Mapping[str, Any], namespace: Mapping[str, Any], driver: str = DEFAULT_DRIVER_NAME
) -> Mapping[str, Any]:
    """Return a new pod, or a template of pods, as the chart's policy leaves it in this namespace. Never raises for a
    value of JSON: what is not of the API's shape is left to the API server, which refuses it."""
    spec: Any = pod.get("spec")
    if not opts_in(namespace, driver) or not _asks(spec) or missing_for_claims(pod, driver) is not None:
        return pod
    counts = {name: [_count(one) for one in spec.get(name) or ()] for name in _LISTS}
    entries = {"containers": [f"{_ENTRY}-{place}" for place in range(len(counts["containers"]))]}
    entries["initContainers"] = list(_init_entries(spec, counts))
    device_class = _class_of(pod, namespace, driver)
    made = {
        entry: {"name": entry, "resourceClaimTemplateName": GpuTemplate(count, device_class).name}
        for name in _LISTS
        for entry, count in zip(entries[name], counts[name], strict=True)
        if count and (name == "containers" or entry.startswith(f"{_ENTRY}-init-"))
    }
    changed = {
        name: [_claiming(*each) for each in zip(spec[name], entries[name], counts[name], strict=True)]
        for name in _LISTS
        if spec.get(name)
    }
    claims = [*(spec.get("resourceClaims") or ()), *made.values()]
    return {**pod, "spec": {**spec, **changed, "resourceClaims": claims}}


def missing_for_claims(pod: Mapping[str, Any], driver: str) -> str | None:
    """Say what a pod that asks for nvidia.com/gpu would have to be so that it gets claims in a namespace that opts in;
    None if it gets them."""
    label = rewrite_label(driver)
    if _texts(pod, "labels").get(label, "true") == "false":
        return f"no label {label}=false: the namespace has {label}=true, and the pod opts out"
    if _MIRROR in _texts(pod, "annotations"):
        return "another kind of pod: a static pod can have no claims"
    if not _asks_rightly(pod.get("spec")):
        return f"limits in whole numbers for {GPUS}, and requests that equal them: the API server refuses anything else"
    return None


def _class_of(pod: Mapping[str, Any], namespace: Mapping[str, Any], driver: str) -> str:
    """Return the class that the pod names, else its namespace, else the driver's own."""
    named = (_texts(pod, "annotations").get(f"{driver}/class"), _texts(namespace, "labels").get(f"{driver}/class"))
    asked = next((name for name in named if isinstance(name, str)), "")
    if not asked:
        return driver
    return asked if "." in asked else f"{asked}.{driver}"


def _texts(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Labels or annotations."""
    metadata = document.get("metadata")
    texts = metadata.get(name) if isinstance(metadata, Mapping) else None
    return texts if isinstance(texts, Mapping) else {}


def _has_shape(spec: Any) -> bool:
    """Whether what is read of a spec is of the API's shape."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("resourceClaims") or [], list):
        return False
    lists = [spec.get(name) or [] for name in _LISTS]
    return all(isinstance(each, list) and all(map(_is_container, each)) for each in lists)


def _is_container(value: Any) -> bool:
    resources = value.get("resources") or {} if isinstance(value, Mapping) else None
    if not isinstance(resources, Mapping) or not isinstance(resources.get("claims") or [], list):
        return False
    return all(isinstance(resources.get(part) or {}, Mapping) for part in ("limits", "requests"))


def _asks(spec: Any) -> bool:
    return _has_shape(spec) and any(_count(one) for name in _LISTS for one in spec.get(name) or ())


def _asks_rightly(spec: Any) -> bool:
    """Whether all containers ask for GPUs in whole numbers, with no other requests than limits."""
    if not _has_shape(spec):
        return False
    try:
        pairs = [
            [_nano(one, part) for part in ("limits", "requests")] for name in _LISTS for one in spec.get(name) or ()
        ]
    except ValueError:
        return False
    return all(asked in (None, limit) and (limit or 0) >= 0 and (limit or 0) % NANO == 0 for limit, asked in pairs)


def _nano(container: Mapping[str, Any], part: str) -> int | None:
    """Return an amount of GPUs; None if there is none. Raises ValueError."""
    amount = ((container.get("resources") or {}).get(part) or {}).get(GPUS)
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, str | int | float):
        raise ValueError(f"{amount!r} is no quantity")
    return read_quantity(str(amount)).quantity.nano


def _count(container: Mapping[str, Any]) -> int:
    try:
        return (_nano(container, "limits") or 0) // NANO
    except ValueError:
        return 0


def _init_entries(spec: Mapping[str, Any], counts: Mapping[str, list[int]]) -> Iterator[str]:
    """Yield the claim of each init container. One that ends does so before the containers begin: it shares with the
    first that has as many. A sidecar runs beside them and has its own."""
    for place, container in enumerate(spec.get("initContainers") or ()):
        ends = container.get("restartPolicy") != "Always"
        enough = (at for at, other in enumerate(counts["containers"]) if other >= counts["initContainers"][place])
        shared = next(enough, None) if ends else None
        yield f"{_ENTRY}-init-{place}" if shared is None else f"{_ENTRY}-{shared}"


def _claiming(container: Document, entry: str, count: int) -> Document:
    """A container with its claim in place of the resource."""
    if not count:
        return container
    resources = dict(container["resources"])
    for part in ("limits", "requests"):
        left = {name: amount for name, amount in (resources.pop(part, None) or {}).items() if name != GPUS}
        resources |= {part: left} if left else {}
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or ()), {"name": entry}]}}
