"""Content negotiation: this server writes JSON, as objects or as tables of them, and nothing else."""

from __future__ import annotations

from typing import Final

from dracaena.demo.apiserver.bodies import JSON
from dracaena.demo.apiserver.errors import not_acceptable

_TABLE_VERSIONS: Final = ("v1", "v1beta1")
_OBJECTS: Final = ""


def media_type(header: str) -> str:
    """The media type of a Content-Type header, without parameters."""
    return header.partition(";")[0].strip().lower()


def table_version(accept: str) -> str:
    """The version of the table that the client wants, empty if it wants plain objects.

    Of what it accepts and this server has, the first counts; 406 if there is none.
    """
    return next(iter(_forms(accept)))


def require_json(accept: str) -> None:
    """406 if the client does not accept plain JSON and there is nothing else; it may prefer other forms."""
    if _OBJECTS not in _forms(accept):
        raise not_acceptable(JSON)


def _forms(accept: str) -> list[str]:
    """Versions of tables, or _OBJECTS, in the order of the header."""
    forms = [_form(one) for one in accept.split(",")] if accept.strip() else [_OBJECTS]
    known = [form for form in forms if form is not None]
    if not known:
        raise not_acceptable(JSON)
    return known


def _form(text: str) -> str | None:
    name, *parameters = [part.strip() for part in text.split(";")]
    given = dict(parameter.partition("=")[::2] for parameter in parameters)
    if name.lower() not in (JSON, "application/*", "*/*") or given.get("q") in ("0", "0.0"):
        return None
    if not ({"as", "g"} & given.keys()):
        return _OBJECTS
    is_table = (given.get("as"), given.get("g")) == ("Table", "meta.k8s.io")
    return given["v"] if is_table and given.get("v") in _TABLE_VERSIONS else None
