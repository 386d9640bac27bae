from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dracaena.api.objects import ObjectMeta
from dracaena.cli.leader import SLACK, why_no_leader
from dracaena.kube.errors import ForbiddenError
from dracaena.kube.lease import Lease, LeaseSpec, microtime
from support.allocation import DRIVER

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


class Leases:
    """A client that lists these."""

    def __init__(self, *items: Lease | Exception) -> None:
        self.items: Sequence[Any] = items

    def list(self, kind: type[Lease], *, field_selector: str) -> Leases:
        assert (kind, field_selector) == (Lease, f"metadata.name=controller.{DRIVER}")
        if self.items and isinstance(self.items[0], Exception):
            raise self.items[0]
        return self


def lease(ago: timedelta, *, holder: str | None = "replica-1", namespace: str = "dracaena") -> Lease:
    spec = LeaseSpec(holder, 20, None, microtime(NOW - ago))
    return Lease(metadata=ObjectMeta(name=f"controller.{DRIVER}", namespace=namespace), spec=spec)


def why(*items: Lease | Exception) -> str | None:
    return why_no_leader(Leases(*items), DRIVER, NOW)  # type: ignore[arg-type]


def test_a_lease_that_is_renewed_says_that_somebody_leads() -> None:
    assert why(lease(timedelta(seconds=1))) is None
    assert why(lease(timedelta(seconds=20) + SLACK)) is None


def test_a_lease_that_ran_out_says_who_led_until_when() -> None:
    said = why(lease(timedelta(minutes=3)))
    assert said == (
        f"no controller leads: Lease dracaena/controller.{DRIVER} was renewed last at 2026-11-25T11:57:00.000000Z, "
        "by replica-1"
    )


def test_the_newest_of_several_leases_counts() -> None:
    assert why(lease(timedelta(days=3), namespace="old"), lease(timedelta(seconds=1))) is None


def test_a_lease_that_was_given_back_is_no_instances() -> None:
    said = why(lease(timedelta(seconds=1), holder=None))
    assert said is not None
    assert said.endswith("by no instance")


def test_without_a_lease_no_controller_has_ever_led() -> None:
    assert why() == f"no controller has ever led: there is no Lease controller.{DRIVER} in any namespace"


def test_who_may_not_read_leases_learns_nothing_about_them() -> None:
    assert why(ForbiddenError("GET leases", 403, "Forbidden", "no")) is None


@pytest.mark.parametrize("holder", ["", None])
def test_a_lease_without_a_holder_never_counts(holder: str | None) -> None:
    assert why(lease(timedelta(0), holder=holder)) is not None
