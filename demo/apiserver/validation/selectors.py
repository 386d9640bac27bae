"""Validation of node selectors, label selectors, taints and tolerations: parts that several kinds share."""

from __future__ import annotations

from typing import Any, Final

from dracaena.demo.apiserver.fields import FieldError, forbidden, invalid, not_supported, required
from dracaena.demo.apiserver.golang import internal
from dracaena.demo.apiserver.validation.text import Errors, check, check_label_key, dns_subdomain, label_value

_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_VALUES_NEEDED: Final = ("In", "NotIn")
_VALUES_FORBIDDEN: Final = ("Exists", "DoesNotExist")


def check_node_selector(selector: dict[str, Any], path: str) -> Errors:
    """A core/v1 NodeSelector."""
    here = f"{path}.nodeSelectorTerms"
    terms = selector["nodeSelectorTerms"]
    if not terms:
        return [required(here, "must have at least one node selector term")]
    return [error for i, term in enumerate(terms) for error in check_node_selector_term(term, f"{here}[{i}]")]


def check_node_selector_term(term: dict[str, Any], path: str, *, any_value: bool = False) -> Errors:
    """One term of a NodeSelector. `any_value` accepts values that no label can have, as preferences do."""
    errors: Errors = []
    for i, requirement in enumerate(term.get("matchExpressions") or ()):
        errors += _check_expression(requirement, f"{path}.matchExpressions[{i}]", any_value=any_value)
    for i, requirement in enumerate(term.get("matchFields") or ()):
        errors += _check_field(requirement, f"{path}.matchFields[{i}]")
    return errors


def _check_expression(requirement: dict[str, Any], path: str, *, any_value: bool) -> Errors:
    operator, values = requirement["operator"], requirement.get("values") or []
    errors: Errors = []
    if operator in _VALUES_NEEDED:
        if not values:
            errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in _VALUES_FORBIDDEN:
        if values:
            errors.append(
                forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
            )
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            errors.append(required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
    else:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    errors += check_label_key(f"{path}.key", requirement["key"])
    if any_value:
        return errors
    return errors + [e for i, value in enumerate(values) for e in check(f"{path}.values[{i}]", value, label_value)]


def _check_field(requirement: dict[str, Any], path: str) -> Errors:
    operator, values = requirement["operator"], requirement.get("values") or []
    errors: Errors = []
    if operator not in _VALUES_NEEDED:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        errors.append(
            required(
                f"{path}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
        )
    if requirement["key"] != "metadata.name":
        return [*errors, invalid(f"{path}.key", requirement["key"], "not a valid field selector key")]
    return errors + [e for i, value in enumerate(values) for e in check(f"{path}.values[{i}]", value, dns_subdomain)]


def check_label_selector(selector: dict[str, Any], path: str) -> Errors:
    """A meta/v1 LabelSelector."""
    errors: Errors = []
    for key, value in (selector.get("matchLabels") or {}).items():
        errors += check_label_key(f"{path}.matchLabels", key)
        errors += check(f"{path}.matchLabels", value, label_value)
    for i, requirement in enumerate(selector.get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{i}]"
        operator, values = requirement["operator"], requirement.get("values") or []
        if operator in _VALUES_NEEDED and not values:
            errors.append(required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in _VALUES_FORBIDDEN and values:
            errors.append(
                forbidden(f"{here}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
            )
        elif operator not in _VALUES_NEEDED + _VALUES_FORBIDDEN:
            errors.append(invalid(f"{here}.operator", operator, "not a valid selector operator"))
        errors += check_label_key(f"{here}.key", requirement["key"])
        errors += [e for j, value in enumerate(values) for e in check(f"{here}.values[{j}]", value, label_value)]
    return errors


def check_taint_effect(effect: str, path: str) -> Errors:
    """The effect of a node taint or a pod toleration."""
    if not effect:
        return [required(path)]
    return [] if effect in _TAINT_EFFECTS else [not_supported(path, effect, _TAINT_EFFECTS)]


def check_tolerations(tolerations: list[dict[str, Any]], path: str) -> Errors:
    """A pod's tolerations."""
    return [error for i, one in enumerate(tolerations) for error in _check_toleration(one, f"{path}[{i}]")]


def _check_toleration(toleration: dict[str, Any], path: str) -> Errors:
    key, operator = toleration.get("key", ""), toleration.get("operator", "")
    value, effect = toleration.get("value", ""), toleration.get("effect", "")
    errors = check_label_key(f"{path}.key", key) if key else []
    if not key and operator != "Exists":
        errors.append(
            invalid(
                f"{path}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        )
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        errors.append(invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    if operator in ("", "Equal"):
        messages = label_value(value)
        errors += [invalid(f"{path}.operator", value, ";".join(messages))] if messages else []
    elif operator == "Exists":
        errors += (
            [invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")] if value else []
        )
    else:
        errors.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    return errors + (check_taint_effect(effect, f"{path}.effect") if effect else [])


def check_taints(taints: list[dict[str, Any]]) -> Errors:
    """A node's taints: valid, and one per (key, effect). Paths begin with `metadata`, as on a real server."""
    errors: Errors = []
    seen = set()
    for i, taint in enumerate(taints):
        here = f"metadata.taints[{i}]"
        errors += check_label_key(f"{here}.key", taint["key"])
        messages = label_value(taint.get("value", ""))
        errors += [invalid(f"{here}.value", taint["value"], ";".join(messages))] if messages else []
        errors += check_taint_effect(taint["effect"], f"{here}.effect")
        identity = (taint["key"], taint["effect"])
        if identity in seen:
            errors.append(
                FieldError(
                    "FieldValueDuplicate",
                    here,
                    internal("Taint", taint),
                    "taints must be unique by key and effect pair",
                )
            )
        seen.add(identity)
    return errors
