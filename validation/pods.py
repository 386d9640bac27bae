"""Checks the parts of pods that are about resource claims; nothing else of a pod is looked at."""

from __future__ import annotations

from collections.abc import Iterator

from dracaena.api.extended_resources import GPUS, advice, gpu_resources, seen
from dracaena.api.gang_label import GANG_LABEL, MOST_GANG_PODS, gang_size
from dracaena.validation.field import Field, Fields, text_at
from dracaena.validation.findings import Breach
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN

_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""On pods that kubelet runs from a file; they can have no claims."""
_CONTAINERS = ("initContainers", "containers")


def check_pod(field: Field, driver: str, missing: str | None = None) -> None:
    """Check a pod, or a pod template that stands in another object. `driver`: the one that messages name. `missing`:
    what it needs to get claims although its namespace has opted in."""
    pod = field.some_fields()
    spec = pod and pod["spec"].some_fields()
    if not pod or not spec:
        return
    _check_gang(pod["metadata"])
    for container in _containers(spec):
        _check_extended_resources(container, driver, missing)
    claims = spec["resourceClaims"]
    if claims.value and _is_mirror(pod["metadata"].value):
        claims.error("claims of a static pod", "no claims: kubelet cannot prepare them")
        return
    check_pod_claims(pod["spec"])


def check_pod_claims(field: Field) -> None:
    """Check what the spec of a pod says about claims."""
    spec = field.some_fields()
    if spec is None:
        return
    names = _check_claims(spec["resourceClaims"])
    used: set[str] = set()
    for container in _containers(spec):
        used |= _check_uses(container, names)
    for name, claim in names.items():
        if name not in used:
            claim.warn("no container uses this claim: its devices are taken, and no container sees them", _USED)


_USED = "a container with this name in resources.claims"


def _check_gang(metadata: Field) -> None:
    labels = metadata.value.get("labels") if isinstance(metadata.value, dict) else None
    size = labels.get(GANG_LABEL) if isinstance(labels, dict) else None
    if isinstance(size, str) and gang_size(size) is None:
        label = metadata.below("labels", labels).below(GANG_LABEL, size)
        label.warn("no number of pods, so the label is ignored", f"1 to {MOST_GANG_PODS}")


def _is_mirror(metadata: object) -> bool:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return isinstance(annotations, dict) and _MIRROR_ANNOTATION in annotations


def _containers(spec: Fields) -> Iterator[Field]:
    for group in _CONTAINERS:
        yield from spec[group].items() or ()


def _check_claims(field: Field) -> dict[str, Field]:
    """Check spec.resourceClaims; return the first claim of each name."""
    claims = field.items() or []
    names: dict[str, Field] = {}
    for claim in claims:
        fields = claim.fields("name", "resourceClaimName", "resourceClaimTemplateName")
        if fields is None:
            continue
        fields["name"].name(DNS_LABEL, missing=Breach.REQUIRED)
        if name := text_at(claim, "name"):
            if name in names:
                fields["name"].error("a second claim of this name", "a name for each claim", breach=Breach.DUPLICATE)
            names.setdefault(name, claim)
        by_name, by_template = fields["resourceClaimName"], fields["resourceClaimTemplateName"]
        by_name.name(DNS_SUBDOMAIN, optional=True)
        by_template.name(DNS_SUBDOMAIN, optional=True)
        if by_name.absent == by_template.absent:
            seen = "neither {} nor {}" if by_name.absent else "both {} and {}"
            claim.error(seen.format("resourceClaimName", "resourceClaimTemplateName"), "exactly one of the two")
    return names


def _check_extended_resources(container: Field, driver: str, missing: str | None) -> None:
    """Warn of what another driver would have to serve."""
    fields = container.some_fields()
    resources = fields and fields["resources"].some_fields()
    places: dict[str, Field] = {}
    for part in ("limits", "requests"):
        amounts = resources and resources[part]
        named = amounts.value if amounts and isinstance(amounts.value, dict) else {}
        for name, amount in named.items():
            if amounts and isinstance(name, str) and str(amount) != "0":
                places.setdefault(name, amounts)
    for name in gpu_resources(places, driver):
        places[name].warn(seen(name), (missing if name == GPUS else None) or advice(name, driver))


def _check_uses(container: Field, names: dict[str, Field]) -> set[str]:
    """Check resources.claims of one container; return the names in it."""
    fields = container.some_fields()
    resources = fields and fields["resources"].some_fields()
    uses = resources and resources["claims"].items()
    met: set[tuple[str, str]] = set()
    for use in uses or ():
        entry = use.fields("name", "request")
        if entry is None:
            continue
        name, request = entry["name"].text(), entry["request"].text()
        if name is None or request is None:
            continue
        if request and not DNS_LABEL.holds(request):
            entry["request"].error(f"not {DNS_LABEL.what}", DNS_LABEL.expected)
        if not name:
            use.error("no name", _one_of(names), breach=Breach.REQUIRED)
        elif name not in names:
            use.error(f"no claim {name} in spec.resourceClaims", _one_of(names), breach=Breach.NOT_FOUND)
        if _overlaps(name, request, met):
            expected = "each claim once, or each of its requests once"
            use.error("named twice in one container", expected, breach=Breach.DUPLICATE)
        met.add((name, request))
    return {name for name, _ in met}


def _overlaps(name: str, request: str, met: set[tuple[str, str]]) -> bool:
    """Whether the container has this request of the claim already; an empty request means all."""
    if not request:
        return any(name == other for other, _ in met)
    return (name, "") in met or (name, request) in met


def _one_of(names: dict[str, Field]) -> str:
    return f"one of {', '.join(sorted(names)[:10])}" if names else "an entry there; there is none"
