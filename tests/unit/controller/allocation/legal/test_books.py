"""The books: who holds a device whole, who shares it, and what the shares take."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import DeviceResult
from dracaena.controller.allocation.legal.books import Books, Holding, holdings_of

GPU = DeviceId("driver-a", "pool-1", "gpu")

devices = st.builds(DeviceId, st.just("driver-a"), st.sampled_from(["pool-1", "pool-2"]), st.sampled_from("abc"))
amounts = st.dictionaries(st.sampled_from(["memory", "cores"]), st.integers(0, 3)).map(
    lambda d: tuple(sorted(d.items()))
)
whole = st.builds(Holding, st.sampled_from("xyz"), devices)
shares = st.builds(Holding, st.sampled_from("xyz"), devices, st.uuids().map(str), amounts)
holdings = st.lists(st.one_of(whole, shares), max_size=12)


@settings(derandomize=True)
@given(holdings)
def test_the_books_say_what_was_written_into_them(written: list[Holding]) -> None:
    books = Books(written)
    for one in written:
        said = [share for share in written if share.device == one.device and share.share_id is not None]
        total: dict[str, int] = {}
        for share in said:
            for name, amount in share.consumed:
                total[name] = total.get(name, 0) + amount
        assert books.consumed(one.device) == total
        assert books.is_shared(one.device) == bool(said)
        assert books.is_held(one.device) == any(b.device == one.device and b.share_id is None for b in written)


def test_results_of_a_claim_are_holdings_unless_an_admin_has_them() -> None:
    results = [
        DeviceResult("a", *GPU),
        DeviceResult("b", *GPU, admin_access=True),
        DeviceResult("c", *GPU, share_id="s", consumed_capacity={"memory": "1k", "cores": "500m"}),
    ]
    assert list(holdings_of("uid", results)) == [
        Holding("uid", GPU),
        Holding("uid", GPU, "s", (("cores", 500_000_000), ("memory", 1000 * 10**9)), "none"),
    ]


def test_a_share_that_takes_less_than_nothing_takes_nothing() -> None:
    taken = {"memory": "-500Gi", "cores": "-1m"}
    (found,) = holdings_of("uid", [DeviceResult("c", *GPU, share_id="s", consumed_capacity=taken)])
    assert found.consumed == (("cores", 0), ("memory", 0))


def test_a_share_has_the_mode_of_the_last_config_that_is_for_its_request() -> None:
    results = [
        DeviceResult("a", *GPU, share_id="s"),
        DeviceResult("b/small", *GPU, share_id="t"),
        DeviceResult("c", *GPU),
    ]
    configs = [
        ((), msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}')),
        (("b",), msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}')),
        (("b",), msgspec.Raw(b'{"kind": "TopologyPolicy"}')),
    ]
    assert [one.mode for one in holdings_of("uid", results, configs)] == ["MPS", "TimeSlicing", ""]
