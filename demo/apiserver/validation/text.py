"""The syntax rules of names, labels, keys and versions, each answering with Kubernetes' own message."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.fields import (
    FieldError,
    declared,
    invalid,
    required,
    too_long,
    too_long_in_characters,
)

Errors = list[FieldError]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = f"{_LABEL}(\\.{_LABEL})*"
_NAME_PART: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_NAME_PART})?"
_C_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"

_LABEL_MESSAGE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_MESSAGE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_CASELESS_MESSAGE: Final = (
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'Example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_NAME_PART_MESSAGE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_NAME_PART}')"
)
_LABEL_KEY_MESSAGE: Final = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_NAME_PART}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_LABEL_VALUE_MESSAGE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_NAME_PART})?')"
)
_C_IDENTIFIER_MESSAGE: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    f"or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{_C_IDENTIFIER}')"
)


NameRule = Callable[[str], Sequence[str]]


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} bytes"


def dns_label(text: str) -> list[str]:
    """RFC 1123 label."""
    messages = [] if len(text.encode()) <= limits.DNS_LABEL_BYTES else [_too_long(limits.DNS_LABEL_BYTES)]
    if re.fullmatch(_LABEL, text):
        return messages
    return [*messages, "must not contain dots" if re.fullmatch(_SUBDOMAIN, text) else _LABEL_MESSAGE]


def dns_subdomain(text: str) -> list[str]:
    """RFC 1123 subdomain."""
    messages = [] if len(text.encode()) <= limits.DNS_SUBDOMAIN_BYTES else [_too_long(limits.DNS_SUBDOMAIN_BYTES)]
    return messages if re.fullmatch(_SUBDOMAIN, text) else [*messages, _SUBDOMAIN_MESSAGE]


def qualified_name(text: str) -> list[str]:
    """The syntax of label keys: ``[domain/]name``."""
    parts = text.split("/")
    if len(parts) > 2:
        return [_LABEL_KEY_MESSAGE]
    messages = []
    if len(parts) == 2:
        if not parts[0]:
            messages.append("prefix part must be non-empty")
        else:
            messages += [f"prefix part {message}" for message in dns_subdomain(parts[0])]
    name = parts[-1]
    if not name:
        messages.append("name part must be non-empty")
    elif len(name) > limits.DNS_LABEL_BYTES:
        messages.append(f"name part {_too_long(limits.DNS_LABEL_BYTES)}")
    if not re.fullmatch(_NAME_PART, name):
        messages.append(_NAME_PART_MESSAGE)
    return messages


def label_value(text: str) -> list[str]:
    """The syntax of label values."""
    messages = [] if len(text) <= limits.DNS_LABEL_BYTES else [_too_long(limits.DNS_LABEL_BYTES)]
    return messages if re.fullmatch(_LABEL_VALUE, text) else [*messages, _LABEL_VALUE_MESSAGE]


def c_identifier(text: str) -> list[str]:
    """The syntax of attribute names without domain."""
    return [] if re.fullmatch(_C_IDENTIFIER, text) else [_C_IDENTIFIER_MESSAGE]


def check(path: str, text: str, rule: NameRule) -> Errors:
    """One Invalid per message of `rule`."""
    return [invalid(path, text, message) for message in rule(text)]


def check_label_key(path: str, text: str) -> Errors:
    """A label key, wherever one is used as a name."""
    return check(path, text, qualified_name)


def check_driver_name(path: str, text: str) -> Errors:
    """A driver name: DNS subdomain of limited length, upper case tolerated."""
    if not text:
        return [required(path)]
    errors = [too_long(path, limits.DRIVER_NAME_BYTES)] if len(text) > limits.DRIVER_NAME_BYTES else []
    return errors + [invalid(path, text, message) for message in dns_subdomain(text.lower())]


def check_declared_driver_name(path: str, text: str) -> Errors:
    """A driver name where 1.37 declares the rule: worded differently, and its form is checked before its length."""
    older = check_driver_name(path, text)
    if not text:
        return declared(older)
    newer = [invalid(path, text, _CASELESS_MESSAGE)] if dns_subdomain(text.lower()) else []
    if len(text) > limits.DRIVER_NAME_BYTES:
        newer.append(too_long_in_characters(path, limits.DRIVER_NAME_BYTES))
    return declared(older, newer)


def nested(document: dict[str, Any], *names: str) -> Any:
    """The value at a path of names, or None."""
    value: Any = document
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
