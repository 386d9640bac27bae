from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect
from dracaena.kubelet_plugin.prepare.mps_containers import crowded_container
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.plugin import device_name, make_pod, prepared_claim


def by_mps(name: str, *gpus: int, request: str = "gpus", mps: bool = True) -> PreparedClaim:
    claim = prepared_claim(name, gpus, share_id=f"of-{name}", request=request)
    effects = [Effect(MPS_SHARE, device_name(n), device_name(n), f"of-{name}") for n in gpus if mps]
    return replace(claim, effects=tuple(effects))


FIRST, SECOND = by_mps("first", 0), by_mps("second", 1)
BOTH = {"a": "first", "b": "second"}


@pytest.mark.parametrize(
    ("containers", "init", "crowded"),
    [
        ({"main": [("a", ""), ("b", "")]}, {}, "main"),
        ({"main": [("a", "gpus"), ("b", "gpus")]}, {}, "main"),
        ({"main": [("a", "")], "side": [("b", "")]}, {}, None),
        ({"main": [("a", ""), ("a", "gpus")]}, {}, None),
        ({"main": [("a", "")]}, {"before": [("a", ""), ("b", "")]}, "before"),
        ({"main": [("a", "other"), ("b", "")]}, {}, None),
    ],
)
def test_a_container_with_shares_of_two_claims_is_named(
    containers: dict[str, list[tuple[str, str]]], init: dict[str, list[tuple[str, str]]], crowded: str | None
) -> None:
    pod = make_pod(containers=containers, init=init, claims=BOTH)
    for plan, other in ((FIRST, SECOND), (SECOND, FIRST)):
        found = crowded_container(plan, (other,), (pod,))
        if crowded is None:
            assert found is None
        else:
            assert found is not None
            assert found.startswith(f"container {crowded} of pod default/pod would have 2 shares by MPS (")
            assert all(device_name(n) in found for n in (0, 1))


def test_two_shares_of_one_claim_are_for_two_containers() -> None:
    two = by_mps("two", 0, 1)
    one_each = replace(
        two,
        devices=tuple(replace(d, request=f"r{n}") for n, d in enumerate(two.devices)),
    )
    together = make_pod(containers={"main": [("a", "")]}, claims={"a": "two"})
    apart = make_pod(containers={"main": [("a", "r0")], "side": [("a", "r1")]}, claims={"a": "two"})
    assert crowded_container(one_each, (), (together,)) is not None
    assert crowded_container(one_each, (), (apart,)) is None
    assert crowded_container(two, (), (together,)) is not None


def test_what_has_no_mps_and_what_was_there_before_is_not_counted() -> None:
    pod = make_pod(containers={"main": [("a", ""), ("b", "")]}, claims=BOTH)
    plain = by_mps("second", 1, mps=False)
    assert crowded_container(FIRST, (plain,), (pod,)) is None
    assert crowded_container(plain, (FIRST,), (pod,)) is None
    assert crowded_container(FIRST, (FIRST,), (pod,)) is None
    assert crowded_container(FIRST, (SECOND,), ()) is None
    whole = prepared_claim("second", (1,), device=DeviceName(device_name(1)))
    assert crowded_container(FIRST, (whole,), (pod,)) is None
