"""Checks DeviceClasses of resource.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Sequence

from dracaena.api import limits
from dracaena.cel import DeviceView, Failed, NoMatch
from dracaena.validation.configs import check_config
from dracaena.validation.field import Field, Fields
from dracaena.validation.metadata import check_metadata
from dracaena.validation.selectors import HONEST_COST, CompiledSelector, check_selectors
from dracaena.validation.syntax import EXTENDED_RESOURCE

_SPEC = ("selectors", "config", "extendedResourceName")


def check_class(field: Field, driver: str) -> None:
    """Check a DeviceClass; `driver` is the name of our driver."""
    device_class = field.fields("apiVersion", "kind", "metadata", "spec")
    if device_class is None:
        return
    check_metadata(device_class["metadata"], namespaced=False)
    spec = device_class["spec"].fields(*_SPEC)
    if spec is None:
        return
    selectors = _check_spec(spec, driver)
    is_ours = _is_ours(device_class, spec, selectors or (), driver)
    if selectors is not None:
        _warn_of_strangers(spec["selectors"], selectors, driver, is_ours=is_ours)
    if spec["extendedResourceName"].value and is_ours:
        spec["extendedResourceName"].warn(
            "pods that ask by this name get devices of nodes left to kube-scheduler alone, chosen without their links",
            "none on a class of this driver, unless a quota of this name is to count its claims",
        )


def check_class_spec(field: Field, driver: str) -> None:
    """Check the spec of a class for what an API server refuses."""
    spec = field.fields(*_SPEC)
    if spec is not None:
        _check_spec(spec, driver)


def _check_spec(spec: Fields, driver: str) -> list[CompiledSelector] | None:
    selectors = check_selectors(spec["selectors"])
    for entry in spec["config"].items(limits.CONFIGS) or ():
        config = entry.fields("opaque")
        if config is not None:
            check_config(config, driver)
    spec["extendedResourceName"].name(EXTENDED_RESOURCE, optional=True)
    return selectors


def _warn_of_strangers(field: Field, selectors: Sequence[CompiledSelector], driver: str, *, is_ours: bool) -> None:
    """Warn if the class does not exclude a device without any attribute, which could be any driver's.

    Selectors run in order until one is false. A selector without an answer, because it reads an attribute that is not
    there, ends the allocation of the whole claim.
    """
    stranger = DeviceView("stranger.invalid")
    for each in selectors:
        match each.selector.evaluate(stranger, HONEST_COST):
            case NoMatch():
                return
            case Failed(reason):
                each.expression.warn(
                    f"no answer for devices of other drivers, which ends the allocation: {reason}",
                    'device.driver == "…" && … in the first selector',
                )
                return
    if is_ours:
        field.warn(
            "a class of this driver that matches the devices of every driver", f'device.driver == "{driver}" && …'
        )


def _is_ours(device_class: Fields, spec: Fields, selectors: Sequence[CompiledSelector], driver: str) -> bool:
    """Whether a class is meant for devices of this driver: by its name, a configuration or a selector."""
    metadata, configs = device_class["metadata"].value, spec["config"].value
    if isinstance(metadata, dict) and metadata.get("name") == driver:
        return True
    opaques = [entry.get("opaque") for entry in configs if isinstance(entry, dict)] if isinstance(configs, list) else []
    if any(isinstance(opaque, dict) and opaque.get("driver") == driver for opaque in opaques):
        return True
    return any(driver in each.selector.expression for each in selectors)
