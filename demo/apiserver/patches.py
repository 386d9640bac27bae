"""JSON patch (RFC 6902) and merge patch (RFC 7396). Neither changes its arguments."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import jsonpatch
import jsonpointer

from dracaena.api import limits
from dracaena.demo.apiserver.errors import ApiError, bad_request

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
MEDIA_TYPES: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)


def merge_patch(original: Any, patch: Any) -> Any:
    """RFC 7396: maps merge, null removes, the rest replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(original) if isinstance(original, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(original: dict[str, Any], operations: Any) -> Any:
    """RFC 6902. Kubernetes answers 422 without saying which operation failed; so do we."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > limits.JSON_PATCH_OPERATIONS:
        raise ApiError(
            413,
            "RequestEntityTooLarge",
            (
                f"The allowed maximum operations in a JSON patch is {limits.JSON_PATCH_OPERATIONS}, "
                f"got {len(operations)}"
            ),
        )
    try:
        return jsonpatch.apply_patch(copy.deepcopy(original), json.loads(json.dumps(operations)))
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, AttributeError):
        raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {}) from None
