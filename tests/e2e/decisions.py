"""The decision in the allocation of a claim, as whoever reads the objects finds it."""

from __future__ import annotations

from typing import Any

from e2e.installation import DRIVER


def decision_in(claim: dict[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of the controller's decision in a claim's allocation; None if it has none."""
    allocation = claim.get("status", {}).get("allocation") or {}
    found: list[dict[str, Any]] = [
        entry["opaque"]["parameters"]
        for entry in allocation.get("devices", {}).get("config") or ()
        if entry["source"] == "FromClass" and entry["opaque"]["driver"] == f"decision.{DRIVER}"
    ]
    return found[-1] if found else None
