"""How names and values of the API are written. Lengths are those of UTF-8 in bytes, as the API server counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dracaena.api import limits

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL, re.ASCII)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PRE_RELEASE = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE_RELEASE}(?:\.{_PRE_RELEASE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Syntax:
    """One way to write a text."""

    what: str
    """With its article, to stand behind "not"."""
    expected: str
    """The rule in words."""
    has_form: Callable[[str], bool]
    is_too_long: Callable[[str], bool] = lambda _text: False
    """For texts whose length is a rule of its own; elsewhere it belongs to the form."""

    def holds(self, text: str) -> bool:
        """Whether a text keeps to all of it."""
        return self.has_form(text) and not self.is_too_long(text)


def _within(pattern: re.Pattern[str], most: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= most and pattern.fullmatch(text) is not None


def _has_driver_form(text: str) -> bool:
    # The server lowers the text first: upper case passes, and nothing tells it apart.
    return _DNS_SUBDOMAIN.fullmatch(text.lower()) is not None


def _over(most: int) -> Callable[[str], bool]:
    return lambda text: len(text.encode("utf-8", "replace")) > most


def _is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    if slash and not _DNS_SUBDOMAIN_HOLDS(prefix):
        return False
    return len(name) <= limits.DNS_LABEL_BYTES and _LABEL_NAME.fullmatch(name) is not None


def _has_qualified_form(text: str) -> bool:
    domain, slash, identifier = text.rpartition("/")
    return (not slash or _has_driver_form(domain)) and _C_IDENTIFIER.fullmatch(identifier) is not None


def _has_long_part(text: str) -> bool:
    domain, _, identifier = text.rpartition("/")
    return _over(limits.DRIVER_NAME_BYTES)(domain) or _over(limits.IDENTIFIER_BYTES)(identifier)


def _is_extended_resource(text: str) -> bool:
    # Resources without a domain and those of *kubernetes.io are native; quota puts "requests." before the name.
    if "/" not in text or "kubernetes.io/" in text or text.startswith("requests."):
        return False
    return _is_label_key(f"requests.{text}")


_DNS_SUBDOMAIN_HOLDS = _within(_DNS_SUBDOMAIN, limits.DNS_SUBDOMAIN_BYTES)
_LABEL_WORDS = (
    f"lower-case letters, digits and dashes, at most {limits.DNS_LABEL_BYTES} characters, "
    "a letter or digit at both ends"
)
_SUBDOMAIN_WORDS = (
    f"lower-case letters, digits, dashes and dots, at most {limits.DNS_SUBDOMAIN_BYTES} characters, "
    "a letter or digit at both ends"
)

DNS_LABEL = Syntax("a DNS label", _LABEL_WORDS, _within(_DNS_LABEL, limits.DNS_LABEL_BYTES))
DNS_SUBDOMAIN = Syntax("a DNS name", _SUBDOMAIN_WORDS, _DNS_SUBDOMAIN_HOLDS)
DRIVER_NAME = Syntax(
    "a driver name",
    f"a DNS name of at most {limits.DRIVER_NAME_BYTES} characters",
    _has_driver_form,
    _over(limits.DRIVER_NAME_BYTES),
)
LABEL_KEY = Syntax(
    "a label key",
    f"letters, digits, '-', '_' and '.', at most {limits.DNS_LABEL_BYTES} characters, "
    "with a DNS name and '/' before it or none",
    _is_label_key,
)
LABEL_VALUE = Syntax(
    "a label value",
    f"letters, digits, '-', '_' and '.', at most {limits.DNS_LABEL_BYTES} characters, a letter or digit at both ends",
    lambda text: not text or (len(text) <= limits.DNS_LABEL_BYTES and _LABEL_NAME.fullmatch(text) is not None),
)
ANNOTATION_KEY = Syntax("an annotation key", LABEL_KEY.expected, lambda text: _is_label_key(text.lower()))
FINALIZER = Syntax(
    "a finalizer",
    "a domain, '/' and a name, for example example.com/keep",
    lambda text: "/" in text and _is_label_key(text),
)
QUALIFIED_NAME = Syntax(
    "a qualified name",
    f"an identifier of at most {limits.IDENTIFIER_BYTES} characters (letters, digits, '_', no digit first), "
    "with a domain and '/' before it or none",
    _has_qualified_form,
    _has_long_part,
)
FULLY_QUALIFIED_NAME = Syntax(
    "a fully qualified name",
    "a domain, '/' and an identifier, for example resource.kubernetes.io/pcieRoot",
    lambda text: "/" in text and _has_qualified_form(text),
    _has_long_part,
)
EXTENDED_RESOURCE = Syntax(
    "the name of an extended resource",
    "a domain of yours, '/' and a name, for example example.com/gpu",
    _is_extended_resource,
)
POOL_NAME = Syntax(
    "a pool name",
    f"one or more DNS names joined by '/', at most {limits.POOL_NAME_BYTES} characters",
    lambda text: all(map(_DNS_SUBDOMAIN_HOLDS, text.split("/"))),
    _over(limits.POOL_NAME_BYTES),
)
SEMVER = Syntax(
    "a semantic version",
    f"major.minor.patch (semver.org 2.0.0), at most {limits.ATTRIBUTE_VALUE_BYTES} characters",
    lambda text: _SEMVER.fullmatch(text) is not None,
    _over(limits.ATTRIBUTE_VALUE_BYTES),
)
