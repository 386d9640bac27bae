"""Validation of label selectors, taints of nodes and tolerations: parts that several kinds share."""

from __future__ import annotations

from typing import Any, Final

from dracaena.demo.apiserver.fields import duplicate, forbidden, invalid, not_supported, required
from dracaena.demo.apiserver.validation.text import Errors, check, check_labels
from dracaena.validation.syntax import LABEL_KEY, LABEL_VALUE

_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_VALUES_NEEDED: Final = ("In", "NotIn")
_VALUES_FORBIDDEN: Final = ("Exists", "DoesNotExist")


def check_label_selector(selector: dict[str, Any], path: str) -> Errors:
    """A meta/v1 LabelSelector."""
    errors = check_labels(f"{path}.matchLabels", selector.get("matchLabels"))
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
        errors += check(f"{here}.key", requirement["key"], LABEL_KEY)
        errors += [e for j, value in enumerate(values) for e in check(f"{here}.values[{j}]", value, LABEL_VALUE)]
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
    errors = check(f"{path}.key", key, LABEL_KEY) if key else []
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
        errors += check(f"{path}.operator", value, LABEL_VALUE)
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
        errors += check(f"{here}.key", taint["key"], LABEL_KEY)
        errors += check(f"{here}.value", taint.get("value", ""), LABEL_VALUE)
        errors += check_taint_effect(taint["effect"], f"{here}.effect")
        identity = (taint["key"], taint["effect"])
        if identity in seen:
            errors.append(duplicate(here, f"{taint['key']}:{taint['effect']}"))
        seen.add(identity)
    return errors
