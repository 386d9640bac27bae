"""Validation of core/v1 Pod and Binding."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dracaena.api.limits import PORT
from dracaena.api.quantity import NANO, read_quantity
from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.fields import (
    IMMUTABLE,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dracaena.demo.apiserver.validation.findings import causes
from dracaena.demo.apiserver.validation.selectors import check_tolerations
from dracaena.demo.apiserver.validation.text import Errors, check, check_labels
from dracaena.validation.field import Field, check_distinct
from dracaena.validation.findings import Breach
from dracaena.validation.nodes import check_node_selector, check_node_selector_term
from dracaena.validation.pods import check_pod_claims
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN, LABEL_KEY

Document = dict[str, Any]

_check_preference = partial(check_node_selector_term, any_value=True)
_STANDARD_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
# Extended resources that stand for a device class: the one use of a kubernetes.io domain here.
_IMPLICIT_EXTENDED: Final = "deviceclass.resource.kubernetes.io/"
_UPDATABLE: Final = "images, further tolerations, and fewer schedulingGates"


def check_pod(pod: Document) -> Errors:
    """A pod, new or changed."""
    errors = check_pod_spec(pod["spec"])
    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGates"):
        errors.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors


def check_pod_spec(spec: Document) -> Errors:
    """``spec`` of a pod, or of a template of pods."""
    errors = causes(check_pod_claims, spec, "spec") + causes(_check_parts, spec, "spec")
    for name in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(name) or ()):
            errors += _check_resources(container["resources"], f"spec.{name}[{i}].resources")
    if spec.get("dnsPolicy") == "None":
        raise not_implemented('the value "None" of the field "spec.dnsPolicy" of Pod')
    errors += check_labels("spec.nodeSelector", spec.get("nodeSelector"))
    errors += _check_affinity(spec.get("affinity") or {}, "spec.affinity")
    return errors + check_tolerations(spec.get("tolerations") or [], "spec.tolerations")


def _check_parts(spec: Field) -> None:
    spec.at("containers").required("a container")
    containers = [one for name in ("containers", "initContainers") for one in spec.at(name).objects()]
    for container in containers:
        _check_container(container)
    names = [container.at("name") for container in containers]
    check_distinct(names, None, "a second container of this name", "a name for each container")
    _choose(spec.at("restartPolicy"), ("Always", "OnFailure", "Never"))
    _choose(spec.at("dnsPolicy"), ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    for name in ("nodeName", "serviceAccountName"):
        if spec.at(name).value:
            spec.at(name).name(DNS_SUBDOMAIN)
    gates = list(spec.at("schedulingGates").objects())
    for gate in gates:
        gate.check_form(gate.value["name"], LABEL_KEY)
    check_distinct(gates, "name", "a second gate of this name", "each gate once")


def _check_container(container: Field) -> None:
    container.at("name").name(DNS_LABEL, missing=Breach.REQUIRED)
    container.at("image").required("an image")
    _choose(container.at("terminationMessagePolicy"), ("File", "FallbackToLogsOnError"))
    _choose(container.at("imagePullPolicy"), ("Always", "IfNotPresent", "Never"))
    for variable in container.at("env").objects():
        variable.at("name").required("a name")
    for port in container.at("ports").objects():
        if not port.value["containerPort"]:
            port.at("containerPort").error("missing", "a port", breach=Breach.REQUIRED)
        for name in ("containerPort", "hostPort"):
            if port.at(name).value and not 0 < port.at(name).value <= PORT:
                port.at(name).error("out of range", f"1 to {PORT}")
        _choose(port.at("protocol"), ("SCTP", "TCP", "UDP"))


def _choose(field: Field, known: tuple[str, ...]) -> None:
    field.choice(known, Breach.NOT_SUPPORTED if field.value else Breach.REQUIRED)


def _check_resources(resources: Document, path: str) -> Errors:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors: Errors = []
    for name, text in limits.items():
        errors += _check_amount(name, text, f"{path}.limits[{name}]")
    for name, text in requests.items():
        errors += _check_amount(name, text, f"{path}.requests[{name}]")
        errors += _check_against_limit(name, text, limits.get(name), path)
    return errors


def _check_amount(name: str, text: str, path: str) -> Errors:
    amount = read_quantity(text).quantity
    errors = _check_resource_name(name, path)
    if amount.nano < 0:
        errors.append(invalid(path, text, "must be greater than or equal to 0"))
    if "/" in name and amount.nano % NANO:
        errors.append(invalid(path, text, "must be an integer"))
    return errors


def _check_against_limit(name: str, text: str, limit: str | None, path: str) -> Errors:
    """Only a node's own resources may be overcommitted, not extended ones."""
    overcommitted = "/" not in name or name.startswith(_IMPLICIT_EXTENDED)
    if limit is None:
        missing = required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        return [] if overcommitted else [missing]
    asked, most = read_quantity(text).quantity, read_quantity(limit).quantity
    if asked != most and not overcommitted:
        return [invalid(f"{path}.requests", text, f"must be equal to {name} limit of {limit}")]
    if asked > most:
        return [invalid(f"{path}.requests", text, f"must be less than or equal to {name} limit of {limit}")]
    return []


def _check_resource_name(name: str, path: str) -> Errors:
    if name in _STANDARD_RESOURCES:
        return []
    if name.startswith("hugepages-"):
        raise not_implemented(f'the resource "{name}" of containers')
    errors = check(path, name, LABEL_KEY)
    if errors:
        return errors
    if "/" not in name:
        return [
            invalid(path, name, "must be a standard resource type or fully qualified"),
            invalid(path, name, "must be a standard resource for containers"),
        ]
    if name.startswith("requests.") or (
        name.partition("/")[0].endswith("kubernetes.io") and not name.startswith(_IMPLICIT_EXTENDED)
    ):
        return [invalid(path, name, "doesn't follow extended resource name standard")]
    return []


def _check_affinity(affinity: Document, path: str) -> Errors:
    errors: Errors = []
    node = affinity.get("nodeAffinity") or {}
    wanted, liked = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
    if wanted in node:
        errors += causes(check_node_selector, node[wanted], f"{path}.nodeAffinity.{wanted}")
    for i, term in enumerate(node.get(liked) or ()):
        here = f"{path}.nodeAffinity.{liked}[{i}]"
        if not 1 <= term["weight"] <= 100:
            errors.append(invalid(f"{here}.weight", term["weight"], "must be in the range 1-100"))
        errors += causes(_check_preference, term["preference"], f"{here}.preference")
    return errors


def check_pod_update(new: Document, old: Document) -> Errors:
    """An update of a pod's metadata and spec: only few fields of the spec may change."""
    errors: Errors = []
    after, before = new["spec"], old["spec"]
    for name in ("containers", "initContainers"):
        now, then = after.get(name) or [], before.get(name) or []
        if len(now) != len(then):
            return [*errors, forbidden(f"spec.{name}", "pod updates may not add or remove containers")]
        errors += [
            invalid(f"spec.{name}[{i}].image", one["image"], "must not have leading or trailing whitespace")
            for i, one in enumerate(now)
            if one.get("image", "").strip() != one.get("image", "")
        ]
    errors += _check_tolerations_update(after.get("tolerations") or [], before.get("tolerations") or [])
    errors += _check_gates_update(after.get("schedulingGates") or [], before.get("schedulingGates") or [])
    if _fixed_part(after) != _fixed_part(before):
        _refuse_gated_changes(after, before)
        errors.append(forbidden("spec", f"of a pod only these change: {_UPDATABLE}"))
    return errors


def _check_tolerations_update(after: list[Document], before: list[Document]) -> Errors:
    def identity(toleration: Document) -> Document:
        return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}

    now = [identity(toleration) for toleration in after]
    if all(identity(toleration) in now for toleration in before):
        return check_tolerations(after, "spec.tolerations")
    return [forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]


def _check_gates_update(after: list[Document], before: list[Document]) -> Errors:
    known = {gate["name"] for gate in before}
    fresh = [i for i, gate in enumerate(after) if gate["name"] not in known]
    return [forbidden(f"spec.schedulingGates[{i}].name", "a new gate: gates can only be deleted") for i in fresh]


def _fixed_part(spec: Document) -> Document:
    """The spec without what an update may change."""
    fixed = {name: value for name, value in spec.items() if name not in ("tolerations", "schedulingGates")}
    for name in ("containers", "initContainers"):
        if fixed.get(name):
            fixed[name] = [{key: part for key, part in one.items() if key != "image"} for one in fixed[name]]
    return fixed


def _refuse_gated_changes(after: Document, before: Document) -> None:
    """Kubernetes lets a gated pod narrow its node selection; this server does not know those rules, and says so."""
    if not before.get("schedulingGates"):
        return
    for name in ("nodeSelector", "affinity"):
        if after.get(name) != before.get(name):
            raise not_implemented(f'changing the field "spec.{name}" of a Pod with scheduling gates')


def check_pod_status(new: Document, old: Document) -> Errors:
    """An update of a pod's status."""
    after, before = new["status"], old["status"]
    errors: Errors = []
    nominated = after.get("nominatedNodeName", "")
    if nominated and nominated != before.get("nominatedNodeName", ""):
        errors += check("status.nominatedNodeName", nominated, DNS_SUBDOMAIN)
        if old["spec"].get("nodeName"):
            errors.append(
                forbidden("status.nominatedNodeName", "may not be set on pods that are already bound to a node")
            )
    if after.get("qosClass") != before.get("qosClass"):
        errors.append(invalid("status.qosClass", after.get("qosClass", ""), IMMUTABLE))
    claims, statuses = new["spec"].get("resourceClaims") or [], after.get("resourceClaimStatuses") or []
    return errors + _check_claim_statuses(statuses, claims)


def _check_claim_statuses(statuses: list[Document], claims: list[Document]) -> Errors:
    known = {claim["name"] for claim in claims}
    errors: Errors = []
    seen = set()
    for i, status in enumerate(statuses):
        here = f"status.resourceClaimStatuses[{i}]"
        if status["name"] not in known:
            errors.append(
                invalid(f"{here}.name", status["name"], "must match the name of an entry in `spec.resourceClaims`")
            )
        if status["name"] in seen:
            errors.append(duplicate(f"{here}.name", status["name"]))
        seen.add(status["name"])
        if "resourceClaimName" in status:
            errors += check(f"{here}.resourceClaimName", status["resourceClaimName"], DNS_SUBDOMAIN)
    return errors


def check_binding(binding: Document) -> Errors:
    """The body of POST pods/NAME/binding."""
    target = binding["target"]
    errors: Errors = []
    if target.get("kind", "") not in ("", "Node"):
        errors.append(not_supported("target.kind", target["kind"], ("Node", "<empty>")))
    if not target.get("name"):
        errors.append(required("target.name"))
    return errors
