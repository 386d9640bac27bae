"""Content negotiation: this server writes JSON, as objects or as tables of them, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dracaena.demo.apiserver.bodies import JSON
from dracaena.demo.apiserver.errors import not_acceptable

_TABLE_VERSIONS: Final = ("v1", "v1beta1")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The first form that a client accepts and this server has. `table_version` is None for plain objects."""

    table_version: str | None = None


def media_type(header: str) -> str:
    """The media type of a Content-Type header, without parameters."""
    return header.partition(";")[0].strip().lower()


def accepted(accept: str) -> Acceptance:
    """The form of the answer; 406 if the client accepts neither plain JSON nor a table in JSON."""
    if not accept.strip():
        return Acceptance()
    for one in accept.split(","):
        found = _acceptance(one)
        if found is not None:
            return found
    raise not_acceptable(f"{JSON}, {JSON};stream=watch")


def require_json(accept: str) -> None:
    """406 if the client does not accept plain JSON and there is nothing else; it may prefer other forms."""
    if accept.strip() and not any(_acceptance(one) == Acceptance() for one in accept.split(",")):
        raise not_acceptable(f"{JSON}, {JSON};stream=watch")


def _acceptance(text: str) -> Acceptance | None:
    name, *parameters = [part.strip() for part in text.split(";")]
    given = dict(parameter.partition("=")[::2] for parameter in parameters)
    if name.lower() not in (JSON, "application/*", "*/*") or given.get("q") in ("0", "0.0"):
        return None
    if not ({"as", "g"} & given.keys()):
        return Acceptance()
    is_table = (given.get("as"), given.get("g")) == ("Table", "meta.k8s.io")
    return Acceptance(given["v"]) if is_table and given.get("v") in _TABLE_VERSIONS else None
