"""What the API server serves, and the chart's objects that it evaluates itself: classes, policies, rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dracaena.cli.installation.snapshot import (
    Document,
    Finding,
    Quote,
    Right,
    Snapshot,
    entries,
    fine,
    name_of,
    text,
    to_fix,
    unknown,
)
from dracaena.validation import Severity, validate_object
from dracaena.validation.pod_templates import value_at

DRA: Final = "resource.k8s.io/v1"
ADMISSION: Final = "admissionregistration.k8s.io/v1"
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    DRA: ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"),
    ADMISSION: ("mutatingadmissionpolicies", "validatingadmissionpolicies"),
}
"""Group with version → resources without which nothing works, or the chart cannot be installed."""

LIMITING: Final = (
    *("own-slices", "own-pods", "own-claims", "nominations", "allocations", "finalizers", "claims", "claim-templates"),
    "templates",
)
"""Policies that come with the chart's value admissionPolicies.enabled, all or none, less `.<driver>`."""

_CLASS_GROUP: Final = "resource.k8s.io"
RIGHTS: Final[Mapping[str, tuple[Right, ...]]] = {
    "explain": (
        *(Right("get", "", "pods"), Right("list", "", "pods"), Right("list", "", "events")),
        *(Right("get", _CLASS_GROUP, kind) for kind in ("deviceclasses", "resourceclaims", "resourceclaimtemplates")),
        Right("list", _CLASS_GROUP, "resourceclaimtemplates"),
    ),
    "status": (
        *(Right("list", "", kind) for kind in ("namespaces", "nodes")),
        *(Right("list", _CLASS_GROUP, kind) for kind in ("resourceclaims", "resourceslices")),
    ),
}
"""Command → what it reads (docs/command.md)."""


def server(snapshot: Snapshot) -> Iterator[Finding]:
    """The version of the API server."""
    if snapshot.too_old:
        yield to_fix(snapshot.too_old)
    elif snapshot.server_version:
        yield fine("the API server answers as Kubernetes {}", snapshot.server_version)
    else:
        yield unknown("the API server does not say its version")


def api(snapshot: Snapshot) -> Iterator[Finding]:
    """What the API server has to serve."""
    for version, needed in NEEDED.items():
        served = snapshot.resources.get(version)
        missing = tuple(sorted(set(needed) - (served or set())))
        if served is None:
            yield unknown("what the API server has in {} could not be read", version)
        elif missing:
            words = (
                "the API server does not serve {} in {}: an admin of the control plane has to switch the API and its"
            )
            yield to_fix(f"{words} feature gates on (they are by default)", missing, version)
        else:
            yield fine("{} is served", version)


def taint_rules(snapshot: Snapshot) -> Iterator[Finding]:
    """DeviceTaintRules, with which an admin takes devices out of use."""
    found = snapshot.kinds["devicetaintrules"]
    if found.is_served:
        yield fine("DeviceTaintRules in force: {}", str(len(found.objects)))
    else:
        yield fine("DeviceTaintRules are not served (Kubernetes 1.37 and newer have them): none is in force")


def classes(snapshot: Snapshot) -> Iterator[Finding]:
    """DeviceClasses: users name them, so one that is wrong keeps pods waiting or gives them devices of others."""
    driver = snapshot.driver
    ours = _ours(snapshot, "deviceclasses")
    for one in ours:
        if not any(f'"{driver}"' in text(each, "cel", "expression") for each in entries(one, "spec", "selectors")):
            words = (
                'no selector of DeviceClass {} names {}: an admin has to add device.driver == "{}" (docs/classes.md)'
            )
            yield to_fix(words, name_of(one), driver, driver)
            continue
        wrong = [each for each in validate_object(one, driver) if _is_wrong(each)]
        if wrong:
            yield to_fix("DeviceClass {}: {}: an admin has to fix it", name_of(one), Quote(wrong[0]))
    yield from _changed(ours, "DeviceClass")
    if not ours:
        words = "there is no DeviceClass {} and none of its kinds: an admin has to make them, or set the chart's value"
        yield to_fix(f"{words} deviceClasses.enabled", driver)
    else:
        yield fine("DeviceClasses {}", _names(ours))


def policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Admission policies: each needs its binding, and expressions that fit the server's types."""
    driver = snapshot.driver
    every: list[Document] = []
    for kind, binding in (
        ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
    ):
        found = _ours(snapshot, kind)
        bound = {text(one, "spec", "policyName") for one in snapshot.objects(binding)}
        every += found
        for name in sorted(set(_names(found)) - bound):
            yield to_fix("policy {} has no binding, so it is not in force: an admin has to run helm upgrade", name)
        for name in sorted(one for one in bound - set(_names(found)) if one.endswith(f".{driver}")):
            yield to_fix("the binding of policy {} is there and the policy is not: helm upgrade makes it again", name)
        for one in found:
            for warning in entries(one, "status", "typeChecking", "expressionWarnings")[:1]:
                words = "the API server says that policy {} does not fit its types, at {}: upgrade Dracaena"
                yield to_fix(words, name_of(one), text(warning, "fieldRef") or "an expression")
    yield from _changed(every, "policy")
    present = {name.removesuffix(f".{driver}") for name in _names(every)}
    missing = tuple(name for name in LIMITING if name not in present)
    if missing and len(missing) < len(LIMITING):
        yield to_fix("the policies {} are missing: an admin has to run helm upgrade", missing)
    elif missing:
        yield fine(
            "no policy limits what the programs' tokens may write (the chart's admissionPolicies.enabled is off)"
        )
    else:
        yield fine("policies that limit the programs' tokens, and change pods and claims: {}", str(len(present)))


def program_rights(snapshot: Snapshot) -> Iterator[Finding]:
    """ClusterRoles of the two programs, bound to their ServiceAccounts."""
    roles, homes = set(_names(snapshot.objects("clusterroles"))), _homes(snapshot)
    bindings = {name_of(one): one for one in snapshot.objects("clusterrolebindings")}
    is_complete = True
    for program in ("controller", "kubelet-plugin"):
        name = f"{program}.{snapshot.driver}"
        subjects = entries(bindings.get(name), "subjects")
        bound = {text(one, "namespace") for one in subjects}
        if name not in roles or name not in bindings:
            yield to_fix("ClusterRole {} or its binding is missing: an admin has to run helm upgrade", name)
            is_complete = False
        elif homes and not homes & bound:
            words = "ClusterRoleBinding {} is for {}, and the programs run in {}: an admin has to run helm upgrade"
            yield to_fix(words, name, tuple(sorted(bound)), tuple(sorted(homes)))
            is_complete = False
    if is_complete:
        yield fine("both programs have their ClusterRoles")


def rights(snapshot: Snapshot) -> Iterator[Finding]:
    """What the user of this command may read with the others."""
    for command, needed in RIGHTS.items():
        refused = tuple(str(right) for right in needed if snapshot.rights.get(right) is False)
        if any(snapshot.rights.get(right) is None for right in needed):
            yield unknown("the API server does not say whether you may run `dracaena {}`", command)
        elif refused:
            words = f"you may not {', '.join(refused)} in all namespaces, which `dracaena {command}` does: an admin can"
            yield to_fix(f"{words} grant it (docs/command.md)")
        else:
            yield fine("you may run `dracaena {}` in all namespaces", command)


def _ours(snapshot: Snapshot, kind: str) -> list[Document]:
    """Cluster-wide objects whose name is derived from the driver's."""
    driver = snapshot.driver
    return [one for one in snapshot.objects(kind) if name_of(one) == driver or name_of(one).endswith(f".{driver}")]


def _names(documents: Any) -> tuple[str, ...]:
    return tuple(name_of(one) for one in documents)


def _homes(snapshot: Snapshot) -> set[str]:
    """Namespaces where the programs run."""
    every = (*snapshot.objects("deployments"), *snapshot.objects("daemonsets"))
    return {text(one, "metadata", "namespace") for one in every} - {""}


def _is_wrong(finding: Any) -> bool:
    """Whether a finding about a class concerns what it gives: not the resource name that a value of the chart adds."""
    return finding.severity is Severity.ERROR or finding.path[:2] == ("spec", "selectors")


def _changed(documents: list[Document], kind: str) -> Iterator[Finding]:
    """Say whose specs were written by others than who made them."""
    for one in documents:
        writers = [
            text(each, "manager")
            for each in entries(one, "metadata", "managedFields")
            if value_at(each, ("fieldsV1", "f:spec")) is not None and not text(each, "subresource")
        ]
        if len(set(writers)) > 1:
            words = "the spec of {} {} was written by {}: compare it with the chart (helm get manifest), expected one"
            yield to_fix(f"{words} writer", kind, name_of(one), tuple(sorted(set(writers))))
