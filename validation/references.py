"""Checks what objects of one input say about each other. What is not in the input may be in the cluster: no finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dracaena.api.gpu_templates import read_gpu_template
from dracaena.api.reasons import not_in_input, unknown_request, unused_request
from dracaena.validation.claims import RequestNames, request_names
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference, Path
from dracaena.validation.pod_templates import pod_template_paths, value_at

Key = tuple[str, str, str]
"""Kind, namespace, name."""


class Input:
    """All objects of one input, by what other objects call them."""

    def __init__(self, objects: Sequence[tuple[ObjectReference, Mapping[str, Any]]]) -> None:
        self._requests: dict[Key, RequestNames] = {}
        self._repeated: set[int] = set()
        self.classes: dict[str, Any] = {}
        """Name → spec of each DeviceClass, as it was written."""
        self._templates: dict[str, set[str]] = {}
        self._naming: Counter[tuple[str, str]] = Counter()  # namespace and name of a claim → pods that name it
        met: set[tuple[str, Key]] = set()
        for number, (reference, document) in enumerate(objects):
            self._count_claims(reference, document)
            if not isinstance(value_at(document, ("metadata", "name")), str):
                continue  # a generated name is different each time
            key = (reference.kind, reference.namespace, reference.name)
            if (reference.api_version, key) in met:
                self._repeated.add(number)
            met.add((reference.api_version, key))
            if reference.kind == "DeviceClass":
                self.classes[reference.name] = document.get("spec")
            if reference.kind == "ResourceClaimTemplate":
                self._templates.setdefault(reference.namespace, set()).add(reference.name)
            if steps := _REQUESTS.get(reference.kind):
                self._requests[key] = request_names(value_at(document, steps))

    def is_repeated(self, number: int) -> bool:
        """Whether an earlier object of the input has the same kind, namespace and name as the one of this number."""
        return number in self._repeated

    def requests(self, namespace: str, claim: Any) -> RequestNames | None:
        """Return the requests behind an entry of a pod's spec.resourceClaims; None if the input does not hold them."""
        if not isinstance(claim, dict):
            return None
        for field, kind in (
            ("resourceClaimName", "ResourceClaim"),
            ("resourceClaimTemplateName", "ResourceClaimTemplate"),
        ):
            name = claim.get(field)
            if isinstance(name, str):
                return self._requests.get((kind, namespace, name))
        return None

    def templates(self, namespace: str) -> Collection[str]:
        """Return the names of the ResourceClaimTemplates of a namespace."""
        return self._templates.get(namespace, ())

    def is_shared(self, namespace: str, claim: Mapping[str, Any]) -> bool:
        """Whether pods of other templates name the claim of an entry of a pod's spec.resourceClaims, too."""
        return self._naming[namespace, str(claim.get("resourceClaimName"))] > 1

    def _count_claims(self, reference: ObjectReference, document: Mapping[str, Any]) -> None:
        group = reference.api_version.rpartition("/")[0]
        for path in pod_template_paths(group, reference.kind, document):
            entries = value_at(document, (*path, "spec", "resourceClaims"))
            named = (
                value_at(entry, ("resourceClaimName",)) for entry in (entries if isinstance(entries, list) else ())
            )
            self._naming.update({(reference.namespace, name) for name in named if isinstance(name, str)})


_REQUESTS = {
    "ResourceClaim": ("spec", "devices", "requests"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "requests"),
}


def check_repeated(number: int, reference: ObjectReference, inputs: Input) -> list[Finding]:
    """Warn about an object that appears in the input twice: applied in turn, the last one wins."""
    report = Report(reference)
    if inputs.is_repeated(number):
        name = Field(reference.name, ("metadata", "name"), report)
        name.warn("a second object of this kind and name in the input; the last one wins", "each object once")
    return report.findings


def check_pod_references(
    reference: ObjectReference, document: Mapping[str, Any], template_path: Path, inputs: Input
) -> list[Finding]:
    """Check that the requests that containers name are there, and that each is named, where the claim or template is in
    the input. A claim that no container names at all is reported with the pod by itself, and what this pod leaves of a
    claim that other pods of the input name may be theirs."""
    report = Report(reference)
    spec_path = (*template_path, "spec")
    spec = value_at(document, spec_path)
    claims = spec.get("resourceClaims") if isinstance(spec, dict) else None
    requests = {
        claim["name"]: inputs.requests(reference.namespace, claim)
        for claim in (claims if isinstance(claims, list) else ())
        if isinstance(claim, dict) and isinstance(claim.get("name"), str)
    }
    named: dict[str, set[str]] = {}
    for field, claim_name, request in _uses(Field(spec, spec_path, report)):
        known = requests.get(claim_name)
        if known is None:
            continue
        named.setdefault(claim_name, set()).update([request] if request else known)
        if request and request not in known:
            field.error(unknown_request(request, claim_name, known), "the name of a request, or none for all of them")
    entries = claims if isinstance(claims, list) else ()
    for index, entry in enumerate(entries):
        template = Field(entry, (*spec_path, "resourceClaims", index), report).at("resourceClaimTemplateName")
        _check_template_name(template, inputs.templates(reference.namespace))
        alias = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(alias, str) or alias not in named or inputs.is_shared(reference.namespace, entry):
            continue
        claim = Field(entry, (*spec_path, "resourceClaims", index), report)
        for name in requests[alias] or ():
            if name not in named[alias]:
                claim.warn(unused_request(name, alias), "a container with this request in resources.claims")
    return report.findings


def _check_template_name(name: Field, known: Collection[str]) -> None:
    if not isinstance(name.value, str) or name.value in known or read_gpu_template(name.value) is not None:
        return
    if text := not_in_input("ResourceClaimTemplate", name.value, known):
        name.warn(text, "the name of a template in the pod's namespace")


def _uses(spec: Field) -> Iterator[tuple[Field, str, str]]:
    """Yield (field of the request, name of the claim, request) for each use of a claim by a container; an empty request
    means all."""
    for group in ("initContainers", "containers"):
        containers = value_at(spec.value, (group,))
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            uses = value_at(container, ("resources", "claims"))
            for at, use in enumerate(uses if isinstance(uses, list) else ()):
                match use:
                    case {"name": str(name)}:
                        request = use.get("request") or ""
                        path = (*spec.path, group, index, "resources", "claims", at, "request")
                        if isinstance(request, str):
                            yield Field(request, path, spec.report), name, request
