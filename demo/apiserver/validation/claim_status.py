"""Validation of ``status`` of a resource.k8s.io/v1 ResourceClaim: allocation, reservation, device status."""

from __future__ import annotations

import ipaddress
import re
import uuid
from dataclasses import replace
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.fields import (
    IMMUTABLE,
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
from dracaena.demo.apiserver.validation.claims import (
    check_declared_pool_name,
    check_items,
    check_json_object,
    check_named_configuration,
    check_pool_name,
    check_reference,
    check_unique,
    request_names,
)
from dracaena.demo.apiserver.validation.metadata import check_metadata_update
from dracaena.demo.apiserver.validation.selectors import check_node_selector
from dracaena.demo.apiserver.validation.text import (
    Errors,
    check,
    check_declared_driver_name,
    check_driver_name,
    check_label_key,
    dns_label,
)

Document = dict[str, Any]


_UUID_FORM: Final = (
    "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with "
    "lowercase hexadecimal characters"
)


def check_claim_status(new: Document, old: Document) -> Errors:
    """An update of a claim through ``/status``."""
    after, before = new["status"], old["status"]
    allocation = after.get("allocation")
    errors = check_metadata_update(new, old)
    errors += check_unique(
        after.get("reservedFor") or (),
        limits.RESERVED_FOR,
        _check_consumer,
        lambda one: one["uid"],
        "status.reservedFor",
    )
    allocated = {device_identity(result) for result in (allocation or {}).get("devices", {}).get("results") or ()}
    errors += _check_device_statuses(after.get("devices") or [], allocated)
    errors += _check_reservation(new, old)
    if allocation is not None and before.get("allocation") is not None:
        if allocation != before["allocation"]:
            error = invalid("status.allocation", internal("AllocationResult", allocation), IMMUTABLE)
            errors += declared([error], [invalid("status.allocation", None, "field cannot be modified once set")])
    elif allocation is not None:
        errors += _check_allocation(allocation, request_names(new["spec"]))
    return errors


def _check_device_statuses(devices: list[Document], allocated: set[str]) -> Errors:
    path = "status.devices"
    errors = check_items(devices, -1, lambda device, here: _check_device_status(device, here, allocated), path)
    known = [device_identity(device) for device in devices]
    for i, device in enumerate(devices):
        if known[i] in known[:i]:
            error = duplicate(f"{path}[{i}]", _shown_identity(device))
            errors += declared([error], [replace(error, value=device)])
    return errors


def _shown_identity(device: Document) -> Document:
    return {
        "Driver": device["driver"],
        "Pool": device["pool"],
        "Device": device["device"],
        "ShareID": device.get("shareID", ""),
    }


def device_identity(entry: Document) -> str:
    """``driver/pool/device[/shareID]``: what distinguishes two allocated devices."""
    parts = (entry["driver"], entry["pool"], entry["device"], entry.get("shareID"))
    return "/".join(part for part in parts if part is not None)


def _check_consumer(consumer: Document, path: str) -> Errors:
    return [required(f"{path}.{name}") for name in ("resource", "name", "uid") if not consumer[name]]


def _check_reservation(new: Document, old: Document) -> Errors:
    now = new["status"].get("reservedFor") or []
    then = old["status"].get("reservedFor") or []
    if not now:
        return []
    if new["status"].get("allocation") is None:
        return [forbidden("status.reservedFor", "may not be specified when `allocated` is not set")]
    if "deletionTimestamp" in new["metadata"] and any(entry not in then for entry in now):
        return [
            forbidden(
                "status.reservedFor",
                ("new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"),
            )
        ]
    return []


def _check_allocation(allocation: Document, names: dict[str, set[str]]) -> Errors:
    devices, here = allocation["devices"], "status.allocation.devices"
    errors = check_items(
        devices.get("results") or (), limits.CLAIM_DEVICES, lambda r, p: _check_result(r, p, names), f"{here}.results"
    )
    errors += check_items(
        devices.get("config") or (),
        2 * limits.CONFIGS,
        lambda c, p: _check_allocated_config(c, p, names),
        f"{here}.config",
    )
    if "nodeSelector" in allocation:
        errors += check_node_selector(allocation["nodeSelector"], "status.allocation.nodeSelector")
    return errors


def _check_result(result: Document, path: str, names: dict[str, set[str]]) -> Errors:
    errors = check_reference(result["request"], f"{path}.request", names)
    errors += check_declared_driver_name(f"{path}.driver", result["driver"])
    errors += check_declared_pool_name(result["pool"], f"{path}.pool")
    errors += check(f"{path}.device", result["device"], dns_label)
    errors += check_binding_conditions(result, path)
    return errors + (_check_share_id(result["shareID"], f"{path}.shareID") if "shareID" in result else [])


def check_binding_conditions(holder: Document, path: str) -> Errors:
    """``bindingConditions`` and ``bindingFailureConditions``: both or none, small, disjoint."""
    wanted, failed = holder.get("bindingConditions") or [], holder.get("bindingFailureConditions") or []
    errors: Errors = []
    for name, conditions in (("bindingConditions", wanted), ("bindingFailureConditions", failed)):
        errors += check_items(
            conditions, limits.BINDING_CONDITIONS, lambda text, here: check_label_key(here, text), f"{path}.{name}"
        )
    errors += [duplicate(f"{path}.bindingConditions[{i}]", text) for i, text in enumerate(wanted) if text in wanted[:i]]
    for i, text in enumerate(failed):
        here = f"{path}.bindingFailureConditions[{i}]"
        if text in failed[:i]:
            errors.append(duplicate(here, text))
        if text in wanted:
            errors.append(invalid(here, text, "bindingFailureConditions must not overlap with bindingConditions"))
    if failed and not wanted:
        errors.append(
            invalid(f"{path}.bindingConditions", None, "bindingConditions are required to use bindingFailureConditions")
        )
    if wanted and not failed:
        errors.append(
            invalid(
                f"{path}.bindingFailureConditions",
                None,
                "bindingFailureConditions are required to use bindingConditions",
            )
        )
    return errors


def _check_share_id(text: str, path: str) -> Errors:
    newer = invalid(path, text, "must be a lowercase UUID in 8-4-4-4-12 format")
    try:
        uuid.UUID(text)
    except ValueError:
        return declared([invalid(path, text, f"error validating uid: invalid UUID length: {len(text)}")], [newer])
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        return declared([invalid(path, text, _UUID_FORM)], [newer])
    return []


def _check_allocated_config(config: Document, path: str, names: dict[str, set[str]]) -> Errors:
    source = config["source"]
    errors: Errors = []
    if not source:
        errors += declared([required(f"{path}.source")])
    elif source not in ("FromClaim", "FromClass"):
        errors += declared([not_supported(f"{path}.source", source, ("FromClaim", "FromClass"))])
    return errors + check_named_configuration(config, path, names)


def _check_device_status(device: Document, path: str, allocated: set[str]) -> Errors:
    errors = check_driver_name(f"{path}.driver", device["driver"])
    errors += check_pool_name(device["pool"], f"{path}.pool")
    errors += check(f"{path}.device", device["device"], dns_label)
    if "shareID" in device:
        errors += _check_share_id(device["shareID"], f"{path}.shareID")
    if device_identity(device) not in allocated:
        errors.append(invalid(path, _shown_identity(device), "must be an allocated device in the claim"))
    conditions = device["conditions"] or []
    if len(conditions) > limits.DEVICE_CONDITIONS:
        errors.append(too_many(f"{path}.conditions", len(conditions), limits.DEVICE_CONDITIONS))
    errors += check_conditions(conditions, f"{path}.conditions")
    if device.get("data") is not None:
        errors += check_json_object(device["data"], f"{path}.data", limits.DEVICE_DATA_BYTES)
    return errors + _check_network(device.get("networkData") or {}, f"{path}.networkData")


def check_conditions(conditions: list[Document], path: str) -> Errors:
    """A list of meta/v1 Conditions."""
    errors: Errors = []
    seen: dict[str, int] = {}
    for i, condition in enumerate(conditions):
        here, name = f"{path}[{i}]", condition["type"]
        if name in seen:
            errors.append(reworded(duplicate(f"{here}.type", name), duplicate(here, name)))
        seen[name] = i
        missing = required(f"{here}.type", "is required")
        errors += [error if name else reworded(error, missing) for error in check_label_key(f"{here}.type", name)]
        status = condition["status"]
        if status not in ("False", "True", "Unknown"):
            errors.append(not_supported(f"{here}.status", status, ("False", "True", "Unknown")))
        if condition.get("observedGeneration", 0) < 0:
            errors.append(
                invalid(
                    f"{here}.observedGeneration",
                    condition["observedGeneration"],
                    "must be greater than or equal to zero",
                )
            )
        if condition.get("lastTransitionTime") is None:
            errors.append(required(f"{here}.lastTransitionTime"))
        errors += _check_reason(condition["reason"], f"{here}.reason")
        if len(condition["message"]) > limits.CONDITION_MESSAGE_BYTES:
            errors.append(too_long(f"{here}.message", limits.CONDITION_MESSAGE_BYTES))
    return errors


def _check_reason(reason: str, path: str) -> Errors:
    if not reason:
        return [required(path)]
    form = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
    errors: Errors = []
    if not re.fullmatch(form, reason):
        errors.append(
            invalid(
                path,
                reason,
                (
                    "a condition reason must start with alphabetic character, optionally followed by a string of "
                    "alphanumeric "
                    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or "
                    "'MY_NAME',  or "
                    f"'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{form}')"
                ),
            )
        )
    if len(reason) > limits.CONDITION_REASON_BYTES:
        errors.append(too_long(path, limits.CONDITION_REASON_BYTES))
    return errors


def _check_network(data: Document, path: str) -> Errors:
    errors: Errors = []
    lengths = (("interfaceName", limits.INTERFACE_NAME_BYTES), ("hardwareAddress", limits.HARDWARE_ADDRESS_BYTES))
    for name, limit in lengths:
        if len(data.get(name, "").encode()) > limit:
            errors += declared([too_long(f"{path}.{name}", limit)])
    return errors + check_unique(data.get("ips") or (), limits.NETWORK_IPS, _check_interface, str, f"{path}.ips")


def _check_interface(text: str, path: str) -> Errors:
    # Kubernetes reads leading zeros of IPv4 octets, and then asks for the form without them.
    plain = re.sub(r"(?<![0-9a-fA-F:])0+(?=\d)", "", text) if ":" not in text else text
    try:
        address = ipaddress.ip_interface(plain) if "/" in text else None
    except ValueError:
        address = None
    if address is None:
        return [invalid(path, text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")]
    if str(address) != text:
        return [invalid(path, text, f'must be in canonical form ("{address}")')]
    return []
