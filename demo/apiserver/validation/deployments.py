"""Validation of apps/v1 Deployment, ReplicaSet and StatefulSet."""

from __future__ import annotations

import re
from typing import Any, Final

from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.fields import forbidden, invalid, not_supported, required
from dracaena.demo.apiserver.selectors import label_selector_matches
from dracaena.demo.apiserver.validation.selectors import check_label_selector
from dracaena.demo.apiserver.validation.text import Errors
from dracaena.demo.apiserver.validation.workloads import check_template

Document = dict[str, Any]

_NEGATIVE: Final = "must be greater than or equal to 0"
_MORE_THAN_REPLICAS: Final = "cannot be greater than status.replicas"
_PERCENT: Final = re.compile(r"[0-9]+%")
_PERCENT_HINT: Final = "must be a whole number, or one with a percent sign after it"
_STRATEGIES: Final = ("Recreate", "RollingUpdate")
_UPDATES: Final = ("OnDelete", "RollingUpdate")
_POLICIES: Final = ("OrderedReady", "Parallel")
_RETAINED: Final = ("Delete", "Retain")


def check_deployment(deployment: Document) -> Errors:
    """A deployment, new or changed."""
    spec = deployment["spec"]
    errors = check_replica_set(deployment) + _check_strategy(spec["strategy"])
    errors += _at_least_zero(spec, ("revisionHistoryLimit", "progressDeadlineSeconds"))
    if spec["progressDeadlineSeconds"] <= 0:
        shown = spec["progressDeadlineSeconds"]
        errors.append(invalid("spec.progressDeadlineSeconds", shown, "must be greater than minReadySeconds"))
    return errors


def check_replica_set(replica_set: Document) -> Errors:
    """A replica set, new or changed."""
    return _at_least_zero(replica_set["spec"], ("replicas",)) + _check_pods(replica_set["spec"])


def _at_least_zero(holder: Document, names: tuple[str, ...], path: str = "spec") -> Errors:
    return [invalid(f"{path}.{name}", holder[name], _NEGATIVE) for name in names if holder.get(name, 0) < 0]


def _check_pods(spec: Document) -> Errors:
    """The selector, and the template whose pods it must select."""
    selector, template, path = spec.get("selector"), spec["template"], "spec.template"
    labels = template["metadata"].get("labels")
    errors: Errors = []
    if selector is None:
        errors.append(required("spec.selector"))
    else:
        errors += check_label_selector(selector, "spec.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            errors.append(invalid("spec.selector", selector, "empty selector is invalid for deployment"))
    if selector is None or not label_selector_matches(selector, labels or {}):
        errors.append(invalid(f"{path}.metadata.labels", labels, "`selector` does not match template `labels`"))
    errors += check_template(template, path)
    policy = template["spec"].get("restartPolicy", "")
    if policy != "Always":
        errors.append(not_supported(f"{path}.spec.restartPolicy", policy, ("Always",)))
    return errors


def check_stateful_set(stateful_set: Document) -> Errors:
    """A stateful set, new or changed."""
    spec, errors = stateful_set["spec"], check_replica_set(stateful_set)
    if spec["podManagementPolicy"] not in _POLICIES:
        errors.append(
            invalid("spec.podManagementPolicy", spec["podManagementPolicy"], f"one of {', '.join(_POLICIES)}")
        )
    path = "spec.persistentVolumeClaimRetentionPolicy"
    for name, policy in spec["persistentVolumeClaimRetentionPolicy"].items():
        errors += [] if policy in _RETAINED else [not_supported(f"{path}.{name}", policy, _RETAINED)]
    return errors + _check_updates(spec["updateStrategy"], "spec.updateStrategy")


def _check_updates(strategy: Document, path: str) -> Errors:
    steps = strategy.get("rollingUpdate", {})
    if strategy["type"] not in _UPDATES:
        return [invalid(path, strategy["type"], f"one of {', '.join(_UPDATES)}")]
    if strategy["type"] == "OnDelete":
        return [invalid(f"{path}.rollingUpdate", steps, "only with type RollingUpdate")] if steps else []
    for name, served in (("partition", 0), ("maxUnavailable", 1)):
        if isinstance(value := steps.get(name, served), str) or value > served:
            raise not_implemented(f'the value {value} of the field "{path}.rollingUpdate.{name}" of StatefulSet')
    return _at_least_zero(steps, ("partition",), f"{path}.rollingUpdate")


def _check_strategy(strategy: Document) -> Errors:
    path = "spec.strategy"
    if strategy["type"] not in _STRATEGIES:
        return [not_supported(path, strategy["type"], _STRATEGIES)]
    if strategy["type"] == "Recreate":
        shown = "may not be specified when strategy `type` is 'Recreate'"
        return [] if "rollingUpdate" not in strategy else [forbidden(f"{path}.rollingUpdate", shown)]
    here, steps = f"{path}.rollingUpdate", strategy["rollingUpdate"]
    errors = [error for name in ("maxUnavailable", "maxSurge") for error in _check_step(steps[name], f"{here}.{name}")]
    if not _amount(steps["maxUnavailable"]) and not _amount(steps["maxSurge"]):
        errors.append(invalid(f"{here}.maxUnavailable", steps["maxUnavailable"], "may not be 0 when `maxSurge` is 0"))
    if isinstance(steps["maxUnavailable"], str) and _amount(steps["maxUnavailable"]) > 100:
        errors.append(invalid(f"{here}.maxUnavailable", steps["maxUnavailable"], "must not be greater than 100%"))
    return errors


def _check_step(value: int | str, path: str) -> Errors:
    if isinstance(value, int):
        return [invalid(path, value, _NEGATIVE)] if value < 0 else []
    return [] if _PERCENT.fullmatch(value) else [invalid(path, value, _PERCENT_HINT)]


def _amount(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return int(value[:-1]) if _PERCENT.fullmatch(value) else 0


def check_deployment_status(new: Document, old: Document) -> Errors:
    """An update of a deployment's status: collisions are only counted up."""
    errors, collisions = check_counts(new, old), new["status"].get("collisionCount", 0)
    if collisions < old["status"].get("collisionCount", 0):
        errors.append(invalid("status.collisionCount", collisions, "cannot be decremented"))
    return errors


_PARTS: Final = ("fullyLabeledReplicas", "updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas")


def check_counts(new: Document, _old: Document) -> Errors:
    """An update of the status of what makes pods: the counts must be consistent."""
    status = new["status"]
    errors = _at_least_zero(status, tuple(name for name, value in status.items() if isinstance(value, int)), "status")
    errors += [
        invalid(f"status.{name}", status[name], _MORE_THAN_REPLICAS)
        for name in _PARTS
        if status.get(name, 0) > status.get("replicas", 0)
    ]
    available = status.get("availableReplicas", 0)
    if available > status.get("readyReplicas", 0):
        errors.append(invalid("status.availableReplicas", available, "cannot be greater than readyReplicas"))
    return errors
