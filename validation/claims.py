"""Checks ResourceClaims and ResourceClaimTemplates of resource.k8s.io/v1: what is asked for, and how requests relate.

Limits are those that kube-apiserver 1.36 and 1.37 enforce, which is not always what the documentation says: the
tolerations of a request, for example, are not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dracaena.api import limits
from dracaena.api.attributes import ALL_CORES, CORES_CAPACITY, MEMORY_CAPACITY, UUID
from dracaena.api.quantity import NANO, Quantity
from dracaena.api.reasons import dead_alternative
from dracaena.api.sharing import MIB_NANO
from dracaena.validation.configs import check_config
from dracaena.validation.field import Field, Fields, check_distinct
from dracaena.validation.findings import Breach
from dracaena.validation.metadata import check_metadata, check_template_metadata
from dracaena.validation.quantities import check_quantity
from dracaena.validation.selectors import check_derived, check_selectors
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN, FULLY_QUALIFIED_NAME, QUALIFIED_NAME
from dracaena.validation.tolerations import check_tolerations

_ALTERNATIVE = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "tolerations",
    "capacity",
    "derivedAttributes",
)
_EXACTLY = (*_ALTERNATIVE, "adminAccess")

RequestNames = Mapping[str, Collection[str]]
"""Name of each request → names of its alternatives."""


def check_claim(field: Field, driver: str) -> None:
    """Check a ResourceClaim as it would be created. Its status is not looked at: creation drops it."""
    claim = field.fields("apiVersion", "kind", "metadata", "spec", "status")
    if claim is not None:
        check_metadata(claim["metadata"], namespaced=True)
        check_claim_spec(claim["spec"], driver)


def check_template(field: Field, driver: str) -> None:
    """Check a ResourceClaimTemplate."""
    template = field.fields("apiVersion", "kind", "metadata", "spec")
    if template is None:
        return
    check_metadata(template["metadata"], namespaced=True)
    spec = template["spec"].fields("metadata", "spec")
    if spec is not None:
        check_template_metadata(spec["metadata"])
        check_claim_spec(spec["spec"], driver)


def check_claim_spec(field: Field, driver: str) -> None:
    """Check the spec of a claim; `driver` is the name of our driver."""
    spec = field.fields("devices")
    devices = spec and spec["devices"].fields("requests", "constraints", "config")
    if not devices:
        return
    names = request_names(devices["requests"].value)
    counts = _check_requests(devices["requests"], driver)
    for constraint in devices["constraints"].items(limits.CLAIM_CONSTRAINTS) or ():
        _check_constraint(constraint, names, counts, driver)
    for entry in devices["config"].items(limits.CONFIGS) or ():
        config = entry.fields("requests", "opaque")
        if config is not None:
            check_references(config["requests"], names)
            check_config(config, driver)


def request_names(requests: object) -> RequestNames:
    """Return the names in a list of requests, if there are any. Never raises, whatever the value is."""
    names: dict[str, set[str]] = {}
    for request in requests if isinstance(requests, list) else ():
        match request:
            case {"name": str(name)}:
                alternatives = request.get("firstAvailable")
                entries = alternatives if isinstance(alternatives, list) else ()
                names[name] = {
                    entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)
                }
    return names


def _check_requests(field: Field, driver: str) -> Mapping[str, int]:
    """Return the fewest devices of each request that has a name."""
    requests = field.items(limits.CLAIM_REQUESTS)
    if requests is None:
        return {}
    counts = [_check_request(request, driver) for request in requests]
    check_distinct(requests, "name", "a second request of this name", "a name for each request")
    if (total := sum(counts)) > limits.CLAIM_DEVICES:
        field.never(f"{total} devices in all", f"at most {limits.CLAIM_DEVICES}: no allocator gives one claim more")
    names = [isinstance(request.value, dict) and request.value.get("name") for request in requests]
    return {name: count for name, count in zip(names, counts, strict=True) if isinstance(name, str)}


def _check_request(field: Field, driver: str) -> int:
    """Return the fewest devices that fulfil the request, as far as the claim says."""
    request = field.fields("name", "exactly", "firstAvailable")
    if request is None:
        return 0
    request["name"].name(DNS_LABEL)
    exactly, alternatives = request["exactly"], request["firstAvailable"]
    has_alternatives = alternatives.value not in (None, [])
    if exactly.absent and not has_alternatives:
        expected = "one of them; a newer kind of request is not known"
        field.error("neither exactly nor firstAvailable", expected, breach=Breach.REQUIRED)
        return 0
    if not exactly.absent and has_alternatives:
        field.error("both exactly and firstAvailable", "one of them")
        return 0
    if has_alternatives:
        return _check_alternatives(alternatives, driver)
    details = exactly.fields(*_EXACTLY)
    if details is None:
        return 0
    details["adminAccess"].boolean()
    return _check_details(details, driver)


def _check_alternatives(field: Field, driver: str) -> int:
    alternatives = field.items(limits.REQUEST_ALTERNATIVES)
    if alternatives is None:
        return 0
    counts = []
    for alternative in alternatives:
        details = alternative.fields("name", *_ALTERNATIVE)
        if details is not None:
            details["name"].name(DNS_LABEL)
            counts.append(_check_details(details, driver))
    check_distinct(alternatives, "name", "a second alternative of this name", "a name for each alternative")
    return min(counts, default=0)


def _check_details(details: Fields, driver: str) -> int:
    """Check what requests and alternatives have in common; return how many devices are asked for, 0 if unknown."""
    details["deviceClassName"].name(DNS_SUBDOMAIN, missing=Breach.REQUIRED)
    check_selectors(details["selectors"])
    check_tolerations(details["tolerations"], driver)
    class_name = details["deviceClassName"].value
    is_ours = isinstance(class_name, str) and (class_name.startswith(driver) or class_name.endswith(driver))
    _check_capacity(details["capacity"], is_ours=is_ours)
    _check_derived(details["derivedAttributes"])
    return _check_count(details["allocationMode"], details["count"])


def _check_count(mode_field: Field, count_field: Field) -> int:
    mode = "ExactCount" if mode_field.value in (None, "") else mode_field.choice(("ExactCount", "All"))
    count = count_field.whole_number()
    if mode is None or count is None:
        return 0
    if mode == "All":
        if count != 0:
            count_field.error("a count beside allocationMode All", "no count")
        return 0
    if count < 0:
        count_field.error("negative", "a whole number above 0")
    elif count == 0 and not count_field.absent:
        count_field.warn("read as 1 by the server", "a whole number above 0, or none for 1")
    return max(count, 0) if count else 1


def _check_capacity(field: Field, *, is_ours: bool) -> None:
    """Check the amounts that a request asks for; `is_ours`: of a class of ours, whose GPUs have memory and cores."""
    capacity = field.fields("requests")
    if capacity is None:
        return
    entries = capacity["requests"].entries() or {}
    for name, amount in entries.items():
        if not QUALIFIED_NAME.holds(name):
            amount.warn(f"the key is not {QUALIFIED_NAME.what}, no device has such a capacity", QUALIFIED_NAME.expected)
        wanted = check_quantity(amount)
        if not is_ours or wanted is None:
            continue
        if wanted.nano < 0:
            amount.never("negative, which the controller refuses", "an amount of 0 or more")
        elif name == MEMORY_CAPACITY:
            _check_memory(amount, wanted)
        elif name == CORES_CAPACITY:
            _check_cores(amount, wanted)
    if is_ours and CORES_CAPACITY in entries and MEMORY_CAPACITY not in entries:
        entries[CORES_CAPACITY].warn(
            "without memory next to it, all memory is taken, and so the whole GPU", "memory, too"
        )


def _check_memory(amount: Field, wanted: Quantity) -> None:
    if wanted.nano == 0:
        amount.warn("every share takes 1Mi at least", "such as 8Gi; no capacity at all for a whole GPU")
    elif wanted.nano % MIB_NANO:
        amount.warn("rounded up to whole MiB", "a multiple of 1Mi")


def _check_cores(amount: Field, wanted: Quantity) -> None:
    if wanted.nano > ALL_CORES * NANO:
        text = "no GPU has more than 100 percent of its cores"
        is_alternative = "firstAvailable" in amount.path
        amount.warn(dead_alternative(text) if is_alternative else text, "a whole number from 0 to 100")
    elif wanted.nano % NANO:
        amount.warn("rounded up to whole percent", "a whole number from 0 to 100")


def _check_derived(field: Field) -> None:
    entries = field.items(limits.REQUEST_DERIVED_ATTRIBUTES)
    if field.absent or entries is None:
        return
    field.warn("unknown to 1.36, and dropped by 1.37 where DRADerivedAttributes is off (it is)", "published attributes")
    for entry in entries:
        derived = entry.fields("name", "expression")
        if derived is not None:
            _check_attribute(derived["name"])
            check_derived(derived["expression"])
    check_distinct(entries, "name", "a second attribute of this name", "a name for each attribute")


def _check_constraint(field: Field, names: RequestNames, counts: Mapping[str, int], driver: str) -> None:
    constraint = field.fields("requests", "matchAttribute", "distinctAttribute")
    if constraint is None:
        return
    check_references(constraint["requests"], names)
    match, distinct = constraint["matchAttribute"], constraint["distinctAttribute"]
    if match.absent and distinct.absent:
        expected = "one of them; a newer constraint is not known"
        field.error("neither matchAttribute nor distinctAttribute", expected, breach=Breach.REQUIRED)
        return
    if not match.absent and not distinct.absent:
        distinct.warn("ignored next to matchAttribute", "a constraint of its own for each attribute")
        distinct.text()
    _check_attribute(distinct if match.absent else match)
    if match.value == f"{driver}/{UUID.name}":
        _check_same_gpu(match, constraint["requests"].value, counts)


def _check_same_gpu(match: Field, references: object, counts: Mapping[str, int]) -> None:
    """Warn if one request asks for several devices that have to be one. `references`: requests that are meant."""
    meant = {str(each).partition("/")[0] for each in references} if isinstance(references, list) else set()
    for name, count in counts.items():
        if count > 1 and (not meant or name in meant):
            match.warn(
                f"no two devices have the same {UUID.name}, and request {name} asks for {count}, so it waits forever",
                "a request for each share of one GPU",
            )


def _check_attribute(field: Field) -> None:
    text = field.text()
    if text is None:
        return
    if text.count("/") > 1:
        field.warn("more than one '/', no device has such an attribute", FULLY_QUALIFIED_NAME.expected)
    elif not FULLY_QUALIFIED_NAME.holds(text):
        field.check_form(text, FULLY_QUALIFIED_NAME)
    elif text.partition("/")[0] != text.partition("/")[0].lower():
        field.warn("capitals in the domain, which 1.37 refuses", FULLY_QUALIFIED_NAME.expected)


def check_references(field: Field, names: RequestNames) -> None:
    """Check a list of `request` and `request/alternative`; an empty one means all."""
    references = field.items(limits.CLAIM_REQUESTS)
    if references is None:
        return
    for reference in references:
        check_reference(reference, names)
    check_distinct(references, None, "named twice", "each request once")


def check_reference(field: Field, names: RequestNames) -> None:
    """Check one `request` or `request/alternative`."""
    text = field.text()
    if text is not None and not _is_known(text, names):
        field.error("no such request in this claim", _known(names))


def _is_known(reference: str, names: RequestNames) -> bool:
    request, slash, alternative = reference.partition("/")
    if request not in names or not DNS_LABEL.holds(request):
        return False
    return not slash or (alternative in names[request] and DNS_LABEL.holds(alternative))


def _known(names: RequestNames) -> str:
    known = [
        known for name, below in names.items() for known in (name, *(f"{name}/{entry}" for entry in sorted(below)))
    ]
    return f"one of {', '.join(known[:10])}" if known else "the name of a request; there is none"
