"""The query of a request, read and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dracaena.demo.apiserver.errors import ApiError, Qualified, bad_request, invalid, not_implemented
from dracaena.demo.apiserver.fields import FieldError, forbidden, not_supported
from dracaena.demo.apiserver.resources import Kind
from dracaena.demo.apiserver.selectors import Selection, parse_fields, parse_labels
from dracaena.demo.apiserver.writes import Options

Query = dict[str, str]

_FALSE: Final = ("false", "0", "f", "F", "FALSE", "False", "")
_NOT_OLDER: Final = "NotOlderThan"


def flag(query: Query, name: str) -> bool:
    """A boolean parameter. Kubernetes reads anything that is not a form of false as true."""
    return name in query and query[name] not in _FALSE


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query of list, watch and deletecollection."""

    selection: Selection
    version: str = ""
    match: str = ""
    limit: int = 0
    token: str = ""
    watch: bool = False
    bookmarks: bool = False
    timeout_s: int | None = None
    initial_events: bool | None = None

    def version_number(self) -> int | None:
        """``resourceVersion`` as a number; None if it is not given. Raises a refusal if it is not a number."""
        if not self.version:
            return None
        why = _unreadable(self.version)
        if why and self.watch:
            raise ApiError(500, "", why)
        if why:
            raise bad_request(f"invalid resource version: {why}")
        return int(self.version)


def _unreadable(version: str) -> str:
    if version.isascii() and version.isdigit():
        return ""
    return f'resourceVersion is a number, not "{version}"'


def version_of_get(query: Query) -> int:
    """``resourceVersion`` of a GET; 0 if it is not given. kube-apiserver answers 500 if it is not a number."""
    version = query.get("resourceVersion", "")
    why = _unreadable(version) if version else ""
    if why:
        raise ApiError(500, "", why)
    return int(version or 0)


def list_options(kind: Kind, namespace: str, name: str, query: Query, version: str) -> ListOptions:
    """Read the query of a list or watch; 400 or 422 for what is wrong with it."""
    selection = Selection(
        namespace,
        name,
        parse_labels(query.get("labelSelector", "")),
        parse_fields(kind, query.get("fieldSelector", ""), version),
    )
    options = ListOptions(
        selection,
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
        _number(query, "limit") or 0,
        query.get("continue", ""),
        flag(query, "watch"),
        flag(query, "allowWatchBookmarks"),
        _number(query, "timeoutSeconds"),
        flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
    )
    if not options.watch and (options.match or options.initial_events is not None):
        raise not_implemented("resourceVersionMatch and sendInitialEvents of a list")
    if options.match != ("" if options.initial_events is None else _NOT_OLDER):
        wrong = forbidden("resourceVersionMatch", f"{_NOT_OLDER} goes with sendInitialEvents, nothing else does")
        raise invalid(Qualified("meta.k8s.io", "ListOptions"), "", [wrong])
    return options


def _number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'{name} is a number, not "{text}"') from None


def write_options(query: Query, kind_of_options: str) -> Options:
    """Read the query of a write; 422 for what is wrong with it."""
    errors: list[FieldError] = []
    if query.get("dryRun"):
        raise not_implemented("dryRun")
    validation = query.get("fieldValidation", "")
    if validation not in ("", "Strict", "Warn", "Ignore"):
        errors.append(not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    if "force" in query and kind_of_options == "PatchOptions":
        errors.append(forbidden("force", "it belongs to server-side apply"))
    if errors:
        raise invalid(Qualified("meta.k8s.io", kind_of_options), "", errors)
    return Options(validation or "Warn")
