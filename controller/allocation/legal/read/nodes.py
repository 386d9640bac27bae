"""What an allocation says about nodes."""

from __future__ import annotations

from typing import Any


def this_node(name: str) -> dict[str, Any]:
    """Return the node selector of an allocation that is only good on one node."""
    rule = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [rule]}]}
