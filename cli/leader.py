"""Whether some controller leads, by its Lease: without a leader no decisions are made, and no pod passes the gate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dracaena.kube.client import KubeClient
    from dracaena.kube.lease import Lease

SLACK: Final = timedelta(seconds=30)
"""What the clocks of two machines may differ by. A leader renews its Lease every few seconds."""


def why_no_leader(client: KubeClient, driver: str, now: datetime) -> str | None:
    """Say why no controller leads; None when one does, or when the Lease may not be read.

    The Lease is found by its default name: one that the setting `lease-name` has renamed is not seen.
    """
    from dracaena.kube.errors import ForbiddenError
    from dracaena.kube.lease import Lease

    name = f"controller.{driver}"
    try:
        leases = client.list(Lease, field_selector=f"metadata.name={name}").items
    except ForbiddenError:
        return None
    if not leases:
        return f"no controller has ever led: there is no Lease {name} in any namespace"
    newest = max(leases, key=_until)
    if _until(newest) + SLACK >= now:
        return None
    return (
        f"no controller leads: Lease {newest.key} was renewed last at {newest.spec.renew_time}, "
        f"by {newest.spec.holder_identity or 'no instance'}"
    )


def _until(lease: Lease) -> datetime:
    """Return the time until which the holder of a Lease leads."""
    spec = lease.spec
    if not spec.holder_identity or not spec.renew_time:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(spec.renew_time) + timedelta(seconds=spec.lease_duration_seconds or 0)
