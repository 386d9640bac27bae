"""Lists: of the present state, of an exact past version, or page by page as of the version of the first page."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final

from dracaena.demo.apiserver.bodies import parse_json
from dracaena.demo.apiserver.errors import bad_request
from dracaena.demo.apiserver.queries import ListOptions
from dracaena.demo.apiserver.resources import Kind
from dracaena.demo.apiserver.storage import ObjectStorage, Stored

_FORMAT: Final = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class ContinueToken:
    """Where the next page begins: after `after`, in the list as of `version`."""

    version: int
    after: str

    def encode(self) -> str:
        """The wire form."""
        text = json.dumps({"v": _FORMAT, "rv": self.version, "start": self.after + "\0"}, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> ContinueToken:
        """Read the wire form; 400 if it is not one."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            document = parse_json(raw.decode(errors="replace").encode())
            version, start = document["rv"], document["start"]
            if document["v"] != _FORMAT or not isinstance(version, int) or not start.endswith("\0"):
                raise ValueError("not a token of this server")
        except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None
        return cls(version, start[:-1])


@dataclass(frozen=True, slots=True)
class ListPage:
    """The answer to a list: its metadata, and objects in the order of their keys."""

    kind: Kind
    metadata: dict[str, Any]
    items: list[Stored]

    def encode(self) -> bytes:
        """A ``…List`` document around items that are already encoded."""
        head = {"kind": f"{self.kind.kind}List", "apiVersion": self.kind.api_version, "metadata": self.metadata}
        text = json.dumps(head, separators=(",", ":")).encode()[:-1]
        return text + b',"items":[' + b",".join(stored.as_item() for stored in self.items) + b"]}"


def read_list(storage: ObjectStorage, kind: Kind, options: ListOptions) -> ListPage:
    """The list, or a page of it. 410 if the requested version is gone, 504 if it has not come yet."""
    if options.token:
        return _continued(storage, kind, options)
    asked = options.version_number()
    exact = options.limit and asked
    if asked:
        storage.wait_for(asked)
    version, objects = storage.snapshot(kind, asked if exact else None)
    # A list of any version comes from kube-apiserver's cache, which knows no pages.
    limit = 0 if options.version == "0" else options.limit
    return _page(kind, version, objects, options, limit)


def _continued(storage: ObjectStorage, kind: Kind, options: ListOptions) -> ListPage:
    if options.version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    token = ContinueToken.decode(options.token)
    version, objects = storage.snapshot(kind, token.version)
    return _page(kind, version, [entry for entry in objects if entry[0] > token.after], options, options.limit)


def _page(kind: Kind, version: int, objects: list[tuple[str, Stored]], options: ListOptions, limit: int) -> ListPage:
    chosen = [(key, stored) for key, stored in objects if options.selection.matches(stored.document)]
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if 0 < limit < len(chosen):
        rest = len(chosen) - limit
        chosen = chosen[:limit]
        metadata["continue"] = ContinueToken(version, chosen[-1][0]).encode()
        if not (options.selection.labels or options.selection.fields):
            metadata["remainingItemCount"] = rest
    return ListPage(kind, metadata, [stored for _, stored in chosen])
