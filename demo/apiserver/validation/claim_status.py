"""Validation of ``status`` of a resource.k8s.io/v1 ResourceClaim: allocation, reservation, device status."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.fields import IMMUTABLE, forbidden, invalid
from dracaena.demo.apiserver.validation.findings import NO_DRIVER, causes
from dracaena.demo.apiserver.validation.text import Errors
from dracaena.validation.claims import RequestNames, check_reference, check_references, request_names
from dracaena.validation.configs import check_config, check_json_object
from dracaena.validation.field import Field, check_distinct
from dracaena.validation.findings import Breach
from dracaena.validation.nodes import check_node_selector
from dracaena.validation.slice_devices import check_binding_conditions
from dracaena.validation.syntax import DNS_LABEL, DRIVER_NAME, LABEL_KEY, POOL_NAME

Document = dict[str, Any]

_SHARE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_STATES: Final = ("False", "True", "Unknown")
_SOURCES: Final = ("FromClaim", "FromClass")


def check_claim_status(new: Document, old: Document) -> Errors:
    """An update of a claim through ``/status``."""
    after, before = new["status"].get("allocation"), old["status"].get("allocation")
    errors = causes(_check_consumers, new["status"].get("reservedFor"), "status.reservedFor")
    allocated = {device_identity(result) for result in (after or {}).get("devices", {}).get("results") or ()}
    errors += causes(lambda field: _check_devices(field, allocated), new["status"].get("devices"), "status.devices")
    errors += _check_reservation(new, old)
    if after is not None and before is not None:
        return errors if after == before else [*errors, invalid("status.allocation", after, IMMUTABLE)]
    names = request_names(new["spec"]["devices"]["requests"])
    return errors + causes(lambda field: _check_allocation(field, names), after, "status.allocation")


def device_identity(entry: Document) -> str:
    """``driver/pool/device[/shareID]``: what distinguishes two allocated devices."""
    parts = (entry["driver"], entry["pool"], entry["device"], entry.get("shareID"))
    return "/".join(part for part in parts if part is not None)


def _check_consumers(field: Field) -> None:
    consumers = field.items(limits.RESERVED_FOR) or []
    for consumer in consumers:
        for name in ("resource", "name", "uid"):
            consumer.at(name).required("a text")
    check_distinct(consumers, "uid", "reserved for it twice", "each consumer once")


def _check_reservation(new: Document, old: Document) -> Errors:
    now = new["status"].get("reservedFor") or []
    then = old["status"].get("reservedFor") or []
    if not now:
        return []
    if new["status"].get("allocation") is None:
        return [forbidden("status.reservedFor", "only an allocated claim is reserved")]
    if "deletionTimestamp" in new["metadata"] and any(entry not in then for entry in now):
        return [forbidden("status.reservedFor", "a claim that is being deleted takes no new entry")]
    return []


def _check_allocation(field: Field, names: RequestNames) -> None:
    devices = field.at("devices")
    for result in devices.at("results").items(limits.CLAIM_DEVICES) or ():
        check_reference(result.at("request"), names)
        _check_device_name(result)
        check_binding_conditions(result.at("bindingConditions"), result.at("bindingFailureConditions"))
    for config in devices.at("config").items(2 * limits.CONFIGS) or ():
        source = config.at("source")
        source.choice(_SOURCES, Breach.NOT_SUPPORTED if source.value else Breach.REQUIRED)
        check_references(config.at("requests"), names)
        fields = config.some_fields()
        assert fields is not None
        check_config(fields, NO_DRIVER)
    check_node_selector(field.at("nodeSelector"))


def _check_device_name(field: Field) -> None:
    """Which device an entry means."""
    field.at("driver").name(DRIVER_NAME, missing=Breach.REQUIRED)
    field.at("pool").name(POOL_NAME, missing=Breach.REQUIRED)
    field.at("device").name(DNS_LABEL)
    share = field.at("shareID")
    if not share.absent and not _SHARE_ID.fullmatch(share.value):
        share.error("not a UUID", "a UUID in lower case, 8-4-4-4-12")


def _check_devices(field: Field, allocated: set[str]) -> None:
    known: set[str] = set()
    for device in field.items() or ():
        identity = device_identity(device.value)
        if identity in known:
            device.error("a second entry for this device", "one for each device", breach=Breach.DUPLICATE)
        known.add(identity)
        if identity not in allocated:
            device.error("not a device of this claim", "one that status.allocation names")
        _check_device_name(device)
        _check_conditions(device.at("conditions"))
        if not device.at("data").absent:
            check_json_object(device.at("data"), limits.DEVICE_DATA_BYTES)
        _check_network(device.at("networkData"))


def _check_conditions(field: Field) -> None:
    """A list of meta/v1 Conditions."""
    conditions = field.items(limits.DEVICE_CONDITIONS) or []
    for condition in conditions:
        condition.at("type").name(LABEL_KEY, missing=Breach.REQUIRED)
        condition.at("status").choice(_STATES)
        if (condition.at("observedGeneration").value or 0) < 0:
            condition.at("observedGeneration").error("negative", "0 or more")
        condition.at("lastTransitionTime").required("a time")
        reason = condition.at("reason")
        if reason.required("a word") and not _REASON.fullmatch(reason.value):
            reason.error("not a reason", "letters, digits and '_,:', a letter first, a letter, a digit or '_' last")
        _check_length(reason, limits.CONDITION_REASON_BYTES)
        _check_length(condition.at("message"), limits.CONDITION_MESSAGE_BYTES)
    check_distinct(conditions, "type", "a second condition of this type", "each type once")


def _check_length(field: Field, most_bytes: int) -> None:
    if len((field.value or "").encode()) > most_bytes:
        field.error("too long", f"at most {most_bytes} bytes", breach=Breach.TOO_LONG)


def _check_network(field: Field) -> None:
    _check_length(field.at("interfaceName"), limits.INTERFACE_NAME_BYTES)
    _check_length(field.at("hardwareAddress"), limits.HARDWARE_ADDRESS_BYTES)
    addresses = field.at("ips").items(limits.NETWORK_IPS) or []
    for address in addresses:
        if not _is_interface(address.value):
            address.error("not an address with its network", "its canonical form, such as 10.9.8.7/24")
    check_distinct(addresses, None, "named twice", "each address once")


def _is_interface(text: str) -> bool:
    try:
        return "/" in text and str(ipaddress.ip_interface(text)) == text
    except ValueError:
        return False
