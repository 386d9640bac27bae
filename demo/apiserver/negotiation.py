"""Content negotiation: this server writes JSON, and nothing else."""

from __future__ import annotations

from dracaena.demo.apiserver.bodies import JSON
from dracaena.demo.apiserver.errors import not_acceptable


def media_type(header: str) -> str:
    """The media type of a Content-Type header, without parameters."""
    return header.partition(";")[0].strip().lower()


def require_json(accept: str) -> None:
    """406 when the client takes no plain JSON; a table or an aggregated document may stand before it."""
    if not accept.strip():
        return
    if not any(_takes_json(one) for one in accept.split(",")):
        raise not_acceptable(f"{JSON}, {JSON};stream=watch")


def _takes_json(text: str) -> bool:
    name, *parameters = [part.strip().lower() for part in text.split(";")]
    given = dict(parameter.partition("=")[::2] for parameter in parameters)
    if name not in (JSON, "application/*", "*/*") or given.get("q") in ("0", "0.0"):
        return False
    return not ({"as", "g"} & given.keys())
