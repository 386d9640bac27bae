"""The formats against which `format.named("dns1123Label")` and the like check texts.

Sources: k8s.io/apimachinery pkg/util/validation (names, labels), k8s.io/kube-openapi pkg/validation/strfmt (others).
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from dracaena.api.limits import DNS_LABEL_BYTES, DNS_SUBDOMAIN_BYTES
from dracaena.cel.types import NAMED_FORMAT, Opaque, Type
from dracaena.cel.values.url import UrlError, check_url


@dataclass(frozen=True, slots=True, eq=False)
class NamedFormat(Opaque):
    """One format. `problems` says what is wrong with a text, and is empty for a valid one."""

    name: str
    problems: Callable[[str], list[str]]
    pattern_size: int
    """The length of the format's pattern according to the cost model."""

    cel_type: ClassVar[Type] = NAMED_FORMAT

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedFormat) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern with the message about texts that do not match it."""

    pattern: str
    says: str
    examples: tuple[str, ...]

    def matches(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None

    @property
    def problem(self) -> str:
        examples = " or ".join(f"'{example}', " for example in self.examples)
        return f"{self.says} (e.g. {examples}regex used for validation is '{self.pattern}')"


_LABEL_PATTERN: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL: Final = _Rule(
    _LABEL_PATTERN,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character",
    ("my-name", "123-abc"),
)
_SUBDOMAIN: Final = _Rule(
    rf"{_LABEL_PATTERN}(\.{_LABEL_PATTERN})*",
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character",
    ("example.com",),
)
_LABEL_1035: Final = _Rule(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    ("my-name", "abc-123"),
)
_KEY_PATTERN: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY: Final = _Rule(
    _KEY_PATTERN,
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    ("MyName", "my.name", "123-abc"),
)
_VALUE: Final = _Rule(
    f"({_KEY_PATTERN})?",
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character",
    ("MyValue", "my_value", "12345"),
)


def _label(text: str) -> list[str]:
    problems = _too_long(text, DNS_LABEL_BYTES)
    if not _LABEL.matches(text):
        problems.append("must not contain dots" if _SUBDOMAIN.matches(text) else _LABEL.problem)
    return problems


def _subdomain(text: str, unit: str = "characters") -> list[str]:
    return _too_long(text, DNS_SUBDOMAIN_BYTES, unit) + ([] if _SUBDOMAIN.matches(text) else [_SUBDOMAIN.problem])


def _label_1035(text: str) -> list[str]:
    return _too_long(text, DNS_LABEL_BYTES) + ([] if _LABEL_1035.matches(text) else [_LABEL_1035.problem])


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.partition("/")
    if "/" in name:
        form = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_KEY.problem} {form}"]
    problems = []
    if not slash:
        name = prefix
    elif not prefix:
        problems.append("prefix part must be non-empty")
    else:
        problems += [f"prefix part {problem}" for problem in _subdomain(prefix, "bytes")]
    in_name = ["must be non-empty"] if not name else _too_long(name, DNS_LABEL_BYTES, "bytes")
    if not _KEY.matches(name):
        in_name.append(_KEY.problem)
    return problems + [f"name part {problem}" for problem in in_name]


def _label_value(text: str) -> list[str]:
    return _too_long(text, DNS_LABEL_BYTES, "bytes") + ([] if _VALUE.matches(text) else [_VALUE.problem])


def _too_long(text: str, most: int, unit: str = "characters") -> list[str]:
    """Messages about names say characters, those about labels say bytes; what is counted is bytes."""
    return [f"must be no more than {most} {unit}"] if len(text.encode()) > most else []


def _as_prefix(problems: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """For a name that something will be appended to: it may end with a dash."""

    def of_prefix(text: str) -> list[str]:
        raw = text.encode()
        masked = raw[:-2] + b"a" if len(raw) > 1 and text.endswith("-") else raw
        return problems(masked.decode(errors="replace"))

    return of_prefix


def _uri(text: str) -> list[str]:
    try:
        check_url(text)
    except UrlError as error:
        return [str(error)]
    return []


_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_BASE64: Final = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE: Final = re.compile("([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})")


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = (int(part) for part in match.groups())
    # The calendar repeats after 400 years, and Python's begins with the year 1.
    return 1 <= month <= 12 and 1 <= day <= monthrange(year + 400, month)[1]


def _is_datetime(text: str) -> bool:
    """A date, a T and a time; whatever follows another T is ignored."""
    date, _, rest = text.lower().partition("t")
    match = _TIME.fullmatch(rest.partition("t")[0])
    return match is not None and _is_date(date) and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _or(problem: str, is_valid: Callable[[str], object]) -> Callable[[str], list[str]]:
    return lambda text: [] if is_valid(text) else [problem]


# By the name in expressions. The sizes are those of the reference's cost model.
NAMED_FORMATS: Final = {
    "dns1123Label": NamedFormat("DNS1123Label", _label, 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _subdomain, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _label_1035, 30),
    "qualifiedName": NamedFormat("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", _as_prefix(_label), 30),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", _as_prefix(_subdomain), 60),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", _as_prefix(_label_1035), 30),
    "labelValue": NamedFormat("LabelValue", _label_value, 40),
    "uri": NamedFormat("URI", _uri, 1103),
    "uuid": NamedFormat("uuid", _or("does not match the UUID format", _UUID.fullmatch), 70),
    "byte": NamedFormat("byte", _or("invalid base64", _BASE64.fullmatch), 84),
    "date": NamedFormat("date", _or("invalid date", _is_date), 71),
    "datetime": NamedFormat("datetime", _or("invalid datetime", _is_datetime), 71),
}
