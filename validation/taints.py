"""Checks taints of devices: those in slices, and the DeviceTaintRules that add some."""

from __future__ import annotations

from datetime import datetime

from dracaena.api.names import taint_key
from dracaena.validation.field import Field
from dracaena.validation.findings import Breach
from dracaena.validation.metadata import check_metadata
from dracaena.validation.syntax import DNS_LABEL, DRIVER_NAME, LABEL_KEY, LABEL_VALUE, POOL_NAME

_EFFECTS = ("NoSchedule", "NoExecute", "None")


def check_taint_rule(field: Field, driver: str) -> None:
    """Check a DeviceTaintRule; `driver` is the name of our driver. All versions of the API have the same fields."""
    rule = field.fields("apiVersion", "kind", "metadata", "spec", "status")
    if rule is None:
        return
    check_metadata(rule["metadata"], namespaced=False)
    spec = rule["spec"].fields("deviceSelector", "taint")
    if spec is None:
        return
    check_taint(spec["taint"])
    key = spec["taint"].value.get("key") if isinstance(spec["taint"].value, dict) else None
    if key == taint_key(driver):
        key_field = spec["taint"].below("key", key)
        key_field.warn("this taint counts for no device of ours where a rule adds it", "another key")
    if spec["deviceSelector"].absent:
        spec["deviceSelector"].warn("without a selector the rule taints nothing", "a selector; {} means every device")
        return
    selector = spec["deviceSelector"].fields("driver", "pool", "device")
    if selector is not None:
        for name, syntax in (("driver", DRIVER_NAME), ("pool", POOL_NAME), ("device", DNS_LABEL)):
            selector[name].name(syntax, optional=True)


def check_taint(field: Field) -> None:
    """Check one taint of a device."""
    taint = field.fields("key", "value", "effect", "timeAdded")
    if taint is None:
        return
    taint["key"].name(LABEL_KEY)
    value = taint["value"].text()
    if value and not LABEL_VALUE.holds(value):
        taint["value"].error(f"not {LABEL_VALUE.what}", LABEL_VALUE.expected)
    taint["effect"].choice(_EFFECTS, Breach.NOT_SUPPORTED if taint["effect"].value else Breach.REQUIRED)
    time = taint["timeAdded"]
    if not time.absent and (text := time.text()) is not None and not _is_time(text):
        time.error("not a time", "a time of RFC 3339 such as 2026-01-31T12:00:00Z")


def _is_time(text: str) -> bool:
    try:
        return "T" in text and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
