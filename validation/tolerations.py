"""Checks tolerations of device taints, among them those that let kube-scheduler allocate our devices."""

from __future__ import annotations

from dracaena.api import limits
from dracaena.api.names import TAINT_EFFECT, TAINT_VALUE, taint_key
from dracaena.validation.field import Field, Fields
from dracaena.validation.syntax import LABEL_KEY, LABEL_VALUE

_EFFECTS = ("", "NoSchedule", "NoExecute", "None")


def check_tolerations(field: Field, driver: str) -> None:
    """Check the tolerations of one request."""
    tolerations = field.items()
    if tolerations is None:
        return
    if len(tolerations) > limits.TOLERATIONS:
        field.warn("more than is documented; a later server may refuse it", f"at most {limits.TOLERATIONS}")
    for toleration in tolerations:
        _check_toleration(toleration, driver)


def _check_toleration(field: Field, driver: str) -> None:
    toleration = field.fields("key", "operator", "value", "effect", "tolerationSeconds")
    if toleration is None:
        return
    key = toleration["key"]
    if key.value != "":
        key.name(LABEL_KEY, optional=True)
    _check_operator(toleration)
    effect = toleration["effect"].choice(_EFFECTS)
    seconds = toleration["tolerationSeconds"]
    if seconds.whole_number() is not None and not seconds.absent and effect not in (None, "NoExecute"):
        seconds.warn(f"ignored with effect {effect or 'left out'}", "effect NoExecute, or no tolerationSeconds")
    _warn_of_a_race(field, toleration, driver)


def _check_operator(toleration: Fields) -> None:
    operator = toleration["operator"].choice(("", "Equal", "Exists"))
    value = toleration["value"].text()
    if operator == "Exists":
        if value:
            toleration["value"].error("a value beside operator Exists", "no value")
        return
    if operator is None or value is None:
        return
    if not LABEL_VALUE.holds(value):
        toleration["value"].error(f"not {LABEL_VALUE.what}", LABEL_VALUE.expected)
    if toleration["key"].value in (None, ""):
        toleration["key"].warn("an empty key with operator Equal tolerates this value of every taint", "a key")


def _warn_of_a_race(field: Field, toleration: Fields, driver: str) -> None:
    """Warn about tolerating the taint that keeps kube-scheduler off our devices (docs/design/publishing.md)."""
    key, operator, value, effect = (toleration[name].value or "" for name in ("key", "operator", "value", "effect"))
    if (
        key in ("", taint_key(driver))
        and effect in ("", TAINT_EFFECT)
        and (operator == "Exists" or value == TAINT_VALUE)
    ):
        field.warn(
            f"tolerates {taint_key(driver)}: kube-scheduler may give one of our devices to two claims",
            "no toleration of that taint: the controller allocates tainted devices by itself",
        )
