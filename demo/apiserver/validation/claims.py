"""Validation of resource.k8s.io/v1 ResourceClaim (without status), ResourceClaimTemplate and DeviceClass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.decode import OpaqueJson
from dracaena.demo.apiserver.fields import (
    IMMUTABLE,
    FieldError,
    declared,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    reworded,
    too_long,
    too_many,
)
from dracaena.demo.apiserver.golang import internal
from dracaena.demo.apiserver.validation.expressions import check_expression
from dracaena.demo.apiserver.validation.metadata import check_labels, check_metadata, check_metadata_update
from dracaena.demo.apiserver.validation.text import (
    Errors,
    c_identifier,
    check,
    check_declared_driver_name,
    check_driver_name,
    check_label_key,
    dns_label,
    dns_subdomain,
    label_value,
    qualified_name,
)

Document = dict[str, Any]
ItemCheck = Callable[[Any, str], Errors]


TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
_ONE_OF_REQUEST: Final = "exactly one of `exactly` or `firstAvailable` is required"
_NAME_OF_REQUEST: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def check_items(items: Iterable[Any], limit: int, one: ItemCheck, path: str, *, is_declared: bool = True) -> Errors:
    """A list with a limit, which is mostly declared in 1.37. A list over its limit is not looked into."""
    present = list(items)
    if 0 <= limit < len(present):
        over = [too_many(path, len(present), limit)]
        return declared(over) if is_declared else over
    return [error for i, item in enumerate(present) for error in one(item, f"{path}[{i}]")]


def check_unique(
    items: Iterable[Any],
    limit: int,
    one: ItemCheck,
    key: Callable[[Any], Any],
    path: str,
    *,
    is_declared: bool = True,
) -> Errors:
    """A list with a limit whose items differ by `key`. Where that is declared, 1.37 shows the whole item."""
    present = list(items)
    errors = check_items(present, limit, one, path, is_declared=is_declared)
    if 0 <= limit < len(present):
        return errors
    seen = set()
    for i, item in enumerate(present):
        identity = key(item)
        if identity in seen:
            error = duplicate(f"{path}[{i}]", identity)
            errors += declared([error], [replace(error, value=item)]) if is_declared else [error]
        seen.add(identity)
    return errors


def check_pool_name(name: str, path: str) -> Errors:
    """One or more DNS subdomains joined by slashes."""
    if not name:
        return [required(path)]
    errors = [too_long(path, limits.POOL_NAME_BYTES)] if len(name.encode()) > limits.POOL_NAME_BYTES else []
    return errors + [error for part in name.split("/") for error in check(path, part, dns_subdomain)]


def check_qualified_name(name: str, path: str) -> Errors:
    """The name of an attribute or a capacity: a C identifier, with or without a domain."""
    parts = name.split("/")
    if len(parts) > 2:
        return []  # a gap in kube-apiserver: names with more slashes are not checked
    errors: Errors = []
    if len(parts) == 2:
        domain = parts[0]
        errors += check_driver_name(path, domain) if domain else [invalid(path, "", "the domain must not be empty")]
        if not parts[1]:
            return [*errors, invalid(path, "", "the name must not be empty")]
    identifier = parts[-1]
    if len(identifier) > limits.IDENTIFIER_BYTES:
        errors.append(too_long(path, limits.IDENTIFIER_BYTES))
    return errors + check(path, identifier, c_identifier)


def check_full_name(name: str, path: str) -> Errors:
    """An attribute's name with its domain."""
    errors = check_qualified_name(name, path)
    if "/" not in name:
        errors.append(invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash"))
    return errors


def check_declared_full_name(name: str, path: str) -> Errors:
    """An attribute's name with its domain, where 1.37 declares the rule: it accepts no capitals in the domain."""
    domain, slash, identifier = name.rpartition("/")
    newer: Errors = []
    if name.count("/") > 1:
        return []
    if slash and not domain:
        newer.append(invalid(path, "", "prefix must not be empty"))
    elif slash:
        newer += _too_long_in_bytes(domain, path, limits.DRIVER_NAME_BYTES)
        newer += [invalid(path, domain, f"prefix: {message}") for message in dns_subdomain(domain)]
    if slash and not identifier:
        newer.append(invalid(path, "", "name must not be empty"))
    else:
        newer += _too_long_in_bytes(identifier, path, limits.IDENTIFIER_BYTES) + check(path, identifier, c_identifier)
    if not slash:
        newer.append(invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash"))
    return declared(check_full_name(name, path), newer)


def _too_long_in_bytes(text: str, path: str, limit: int) -> Errors:
    return [too_long(path, limit)] if len(text.encode()) > limit else []


def check_declared_pool_name(name: str, path: str) -> Errors:
    """A pool's name where 1.37 declares the rule, and says which part of it is wrong."""
    older = check_pool_name(name, path)
    if not name:
        return declared(older)
    newer = _too_long_in_bytes(name, path, limits.POOL_NAME_BYTES)
    for at, part in enumerate(name.split("/")):
        reasons = dns_subdomain(part) if part else ["must not be empty"]
        newer += [invalid(path, part or name, f"segment {at}: {reason}") for reason in reasons]
    return declared([_in_characters(error) for error in older], newer)


def _in_characters(error: FieldError) -> FieldError:
    """How 1.36 words the length of a part of a pool's name."""
    is_length = error.type == "FieldValueInvalid" and error.detail.endswith(" bytes")
    return replace(error, detail=f"{error.detail.removesuffix('bytes')}characters") if is_length else error


def check_json_object(value: Any, path: str, limit: int) -> Errors:
    """Opaque data: a JSON object of limited size."""
    if value is None:
        return [required(path)]
    text = value.text if isinstance(value, OpaqueJson) else json.dumps(value)
    if len(text.encode()) > limit:
        return [too_long(path, limit)]
    return [] if isinstance(value, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]


def check_claim(claim: Document) -> Errors:
    """A new claim."""
    return check_metadata(claim, namespaced=True, name_rule=dns_subdomain) + check_claim_spec(claim["spec"], "spec")


def check_claim_update(new: Document, old: Document) -> Errors:
    """An update of a claim itself, not of its status."""
    errors = check_metadata(new, namespaced=True, name_rule=dns_subdomain) + check_metadata_update(new, old)
    return errors + _declared_same(_check_same_spec(new, old, "ResourceClaimSpec"))


def check_template(template: Document) -> Errors:
    """A new claim template."""
    errors = check_metadata(template, namespaced=True, name_rule=dns_subdomain)
    metadata = template["spec"]["metadata"]
    errors += check_labels(metadata, "spec.metadata", annotations_first=True)
    errors += [
        forbidden(f"spec.metadata.{name}", "cannot be set")
        for name in metadata
        if name not in ("labels", "annotations")
    ]
    return errors + check_claim_spec(template["spec"]["spec"], "spec.spec")


def check_template_update(new: Document, old: Document) -> Errors:
    """An update of a claim template."""
    errors = check_template(new) + check_metadata_update(new, old)
    newer = invalid("spec", internal("ResourceClaimTemplateSpec", new["spec"], "1.37"), IMMUTABLE)
    return errors + [reworded(one, newer) for one in _check_same_spec(new, old, "ResourceClaimTemplateSpec")]


def _declared_same(errors: Errors) -> Errors:
    return declared(errors, [invalid("spec", None, IMMUTABLE)]) if errors else []


def _check_same_spec(new: Document, old: Document, type_name: str) -> Errors:
    return [] if new["spec"] == old["spec"] else [invalid("spec", internal(type_name, new["spec"]), IMMUTABLE)]


def check_class(device_class: Document) -> Errors:
    """A new device class."""
    spec = device_class["spec"]
    errors = [
        replace(error, is_declared=error.field == "metadata.name")
        for error in check_metadata(device_class, namespaced=False, name_rule=dns_subdomain)
    ]
    errors += check_items(spec.get("selectors") or (), limits.SELECTORS, _check_selector, "spec.selectors")
    errors += check_items(spec.get("config") or (), limits.CONFIGS, _check_configuration, "spec.config")
    if "extendedResourceName" in spec and not _is_extended_resource(spec["extendedResourceName"]):
        errors += _not_extended("spec.extendedResourceName", spec["extendedResourceName"])
    return errors


def check_class_update(new: Document, old: Document) -> Errors:
    """An update of a device class."""
    return check_metadata_update(new, old) + check_class(new)


def _not_extended(path: str, name: str) -> Errors:
    error = invalid(path, name, "must be a valid extended resource name")
    reasons = [] if "/" in name else ["a name must be a domain-prefixed path, such as 'example.com/my-prop'"]
    if "/" in name and "kubernetes.io/" in name:
        reasons.append('must not have "kubernetes.io/" domain')
    if name.startswith("requests."):
        reasons.append('must not have "requests." prefix')
    reasons += qualified_name(f"requests.{name}")
    return declared([error], [invalid(path, name, reason) for reason in reasons] or [error])


def _is_extended_resource(name: str) -> bool:
    if "/" not in name or name.startswith("requests.") or name.partition("/")[0].endswith("kubernetes.io"):
        return False
    return not qualified_name(f"requests.{name}")


def request_names(spec: Document) -> dict[str, set[str]]:
    """Request names with the names of their alternatives."""
    return {
        request["name"]: {sub["name"] for sub in request.get("firstAvailable") or ()}
        for request in spec["devices"]["requests"] or ()
    }


def check_claim_spec(spec: Document, path: str) -> Errors:
    """``devices`` of a claim or a template."""
    devices, here = spec["devices"], f"{path}.devices"
    names = request_names(spec)
    errors = check_unique(
        devices["requests"] or (),
        limits.CLAIM_REQUESTS,
        _check_request,
        lambda request: request["name"],
        f"{here}.requests",
    )
    errors += check_items(
        devices.get("constraints") or (),
        limits.CLAIM_CONSTRAINTS,
        lambda c, p: _check_constraint(c, p, names),
        f"{here}.constraints",
    )
    return errors + check_items(
        devices.get("config") or (),
        limits.CONFIGS,
        lambda c, p: check_named_configuration(c, p, names),
        f"{here}.config",
    )


def _check_request(request: Document, path: str) -> Errors:
    errors = check(f"{path}.name", request["name"], dns_label)
    alternatives, exactly = request.get("firstAvailable"), request.get("exactly")
    if alternatives and exactly is not None:
        return [*errors, invalid(path, None, f"{_ONE_OF_REQUEST}, but multiple fields are set")]
    if alternatives:
        return errors + check_unique(
            alternatives,
            limits.REQUEST_ALTERNATIVES,
            _check_subrequest,
            lambda sub: sub["name"],
            f"{path}.firstAvailable",
        )
    if exactly is not None:
        return errors + _check_exact(exactly, f"{path}.exactly")
    return [*errors, required(path, _ONE_OF_REQUEST)]


def _check_subrequest(request: Document, path: str) -> Errors:
    errors = check(f"{path}.name", request["name"], dns_label)
    return errors + declared(_check_class_name(request, path)) + _check_devices_of(request, path)


def _check_exact(request: Document, path: str) -> Errors:
    return _check_class_name(request, path) + _check_devices_of(request, path)


def _check_class_name(request: Document, path: str) -> Errors:
    name, here = request["deviceClassName"], f"{path}.deviceClassName"
    return check(here, name, dns_subdomain) if name else [required(here)]


def _check_devices_of(request: Document, path: str) -> Errors:
    errors = check_items(request.get("selectors") or (), limits.SELECTORS, _check_selector, f"{path}.selectors")
    mode, count = request.get("allocationMode", ""), request.get("count", 0)
    if mode == "All":
        if count:
            errors.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount":
        if count <= 0:
            errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    else:
        errors += declared([not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount"))])
    # The API reference says at most 16; kube-apiserver 1.36 accepts more.
    for i, toleration in enumerate(request.get("tolerations") or ()):
        errors += _check_toleration(toleration, f"{path}.tolerations[{i}]")
    return errors


def _check_selector(selector: Document, path: str) -> Errors:
    if "cel" not in selector:
        return [required(f"{path}.cel")]
    expression = selector["cel"]["expression"]
    return check_expression(expression, f"{path}.cel.expression")


def _check_toleration(toleration: Document, path: str) -> Errors:
    errors = declared(check_label_key(f"{path}.key", toleration["key"])) if toleration.get("key") else []
    operator, value = toleration.get("operator", ""), toleration.get("value", "")
    if operator == "Exists":
        if value:
            errors.append(invalid(f"{path}.value", value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        errors += check(f"{path}.value", value, label_value)
    else:
        errors += declared([not_supported(f"{path}.operator", operator, ("Equal", "Exists"))])
    effect = toleration.get("effect", "")
    if effect and effect not in TAINT_EFFECTS:
        errors += declared([not_supported(f"{path}.effect", effect, TAINT_EFFECTS)])
    return errors


def _check_constraint(constraint: Document, path: str, names: dict[str, set[str]]) -> Errors:
    errors = _check_references(constraint.get("requests") or [], path, names)
    match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
    if match is not None:
        errors += check_declared_full_name(match, f"{path}.matchAttribute")
    elif distinct is not None:
        errors += check_declared_full_name(distinct, f"{path}.distinctAttribute")
    else:
        errors.append(
            required(
                path, 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
            )
        )
    return errors


def _check_references(requests: list[str], path: str, names: dict[str, set[str]]) -> Errors:
    return check_unique(
        requests, limits.CLAIM_REQUESTS, lambda name, here: check_reference(name, here, names), str, f"{path}.requests"
    )


def check_reference(name: str, path: str, names: dict[str, set[str]]) -> Errors:
    """``request`` or ``request/subrequest`` of this claim."""
    segments = name.split("/")
    if len(segments) > 2:
        return [invalid(path, name, _NAME_OF_REQUEST)]
    errors = [error for segment in segments for error in check(path, segment, dns_label)]
    known = segments[0] in names and (len(segments) == 1 or segments[1] in names[segments[0]])
    return errors if known else [*errors, invalid(path, name, _NAME_OF_REQUEST)]


def check_named_configuration(config: Document, path: str, names: dict[str, set[str]]) -> Errors:
    """Opaque configuration together with the requests that it is for."""
    return _check_references(config.get("requests") or [], path, names) + _check_configuration(config, path)


def _check_configuration(config: Document, path: str) -> Errors:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    here = f"{path}.opaque"
    errors = check_declared_driver_name(f"{here}.driver", opaque["driver"])
    return errors + check_json_object(opaque["parameters"], f"{here}.parameters", limits.PARAMETERS_BYTES)
