"""The sub-resource ``scale``: the number of pods, read and written without looking at the rest of the object."""

from __future__ import annotations

import json
from typing import Any

from dracaena.demo.apiserver.bodies import parse_json
from dracaena.demo.apiserver.errors import Qualified, bad_request, invalid, not_implemented
from dracaena.demo.apiserver.fields import invalid as invalid_field
from dracaena.demo.apiserver.patches import MERGE_PATCH
from dracaena.demo.apiserver.tables.kinds import selector_text

Document = dict[str, Any]

_COPIED = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(document: Document) -> Document:
    """The Scale of a stored object."""
    metadata = {name: document["metadata"][name] for name in _COPIED if name in document["metadata"]}
    replicas = document["spec"].get("replicas", 0)
    selector = selector_text(document["spec"].get("selector"))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": document["status"].get("replicas", 0)} | ({"selector": selector} if selector else {}),
    }


def scaled_by(media_type: str, body: bytes, name: str) -> bytes:
    """The patch of the object `name` that a patch of its Scale means. 501 for other forms than merge patches."""
    if media_type != MERGE_PATCH:
        raise not_implemented(f"patches of scale in the form {media_type}")
    try:
        patch = parse_json(body)
        replicas = patch["spec"]["replicas"]
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request(f"a patch of scale says spec.replicas: {error!r}") from None
    if isinstance(replicas, int) and replicas < 0:
        below_zero = invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(Qualified("autoscaling", "Scale"), name, [below_zero])
    metadata = patch.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request(f"metadata of a patch of scale is an object, not {metadata!r}")
    version = metadata.get("resourceVersion")
    guard = {"metadata": {"resourceVersion": version}} if version else {}
    return json.dumps(guard | {"spec": {"replicas": replicas}}).encode()
