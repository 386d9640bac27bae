from __future__ import annotations

from collections import Counter
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.state.node_state import Holdings

OURS = "gpu.dracaena.dev"


def test_whole_devices_are_counted_by_what_their_holder_holds() -> None:
    def ids(*names: str) -> frozenset[DeviceId]:
        return frozenset(DeviceId(OURS, "n", name) for name in names)

    holdings = Holdings(OURS, ())
    holdings.hold("one", ids("a"), frozenset())
    holdings.hold("pair", ids("b", "c"), frozenset())
    assert holdings.by_size == {1: 1, 2: 2}
    holdings.hold("one", ids("a", "d"), frozenset())
    assert holdings.by_size == {2: 4}
    holdings.hold("pair", ids(), frozenset())
    assert holdings.by_size == {2: 2}
    holdings.check()


@given(
    st.lists(st.tuples(st.sampled_from("uvwx"), st.frozensets(st.sampled_from("abcd"))), max_size=12),
)
def test_a_device_that_several_share_counts_once_for_the_holder_with_most(
    changes: list[tuple[str, frozenset[str]]],
) -> None:
    holdings, held = Holdings(OURS, ()), dict[str, frozenset[str]]()
    for holder, names in changes:
        devices = frozenset(DeviceId(OURS, "n", name) for name in names)
        shares = frozenset(Holding(holder, device, f"{holder}-{device.device}") for device in devices)
        holdings.hold(holder, devices, shares)
        held[holder] = names
        holdings.check()
        sizes = {
            name: max(len(one) for one in held.values() if name in one) for name in frozenset().union(*held.values())
        }
        assert holdings.by_size == Counter(sizes.values())
        assert set(holdings.taken("n")) == set(sizes)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("uvw"),
            st.frozensets(st.sampled_from("mn"), max_size=2),
            st.frozensets(st.sampled_from("mno"), max_size=2),
        ),
        max_size=12,
    )
)
def test_a_pool_knows_who_holds_devices_and_shares_of_it(
    changes: list[tuple[str, frozenset[str], frozenset[str]]],
) -> None:
    holdings, held = Holdings(OURS, ("other.example.com",)), dict[str, frozenset[str]]()
    for holder, whole, shared in changes:
        shares = frozenset(Holding(holder, DeviceId(OURS, pool, "b"), holder) for pool in shared)
        others = frozenset({Holding("", DeviceId("other.example.com", "p", holder))})
        holdings.hold(holder, frozenset(DeviceId(OURS, pool, "a") for pool in whole), shares | others)
        held[holder] = whole | shared
        holdings.check()
        for pool in "mnop":
            assert holdings.of_pool(pool) == sorted(name for name, pools in held.items() if pool in pools)


def test_many_shares_of_one_gpu_are_one_gpu() -> None:
    holdings, device = Holdings(OURS, ()), DeviceId(OURS, "n", "g")
    for number in range(70):
        holdings.hold(f"c{number}", frozenset({device}), frozenset({Holding(f"u{number}", device, "s")}))
    assert holdings.by_size == {1: 1}


class TestWholeBesideShares:
    GPU: Final = DeviceId(OURS, "n", "g")
    WHOLE: Final = Holding("", GPU)

    def share(self, holder: str, share_id: str = "s") -> Holding:
        return Holding(holder, self.GPU, share_id, (("memory", 1),), "none")

    def test_who_has_a_device_whole_is_reported_next_to_a_share_of_it(self) -> None:
        for order in (("whole", "part"), ("part", "whole")):
            holdings = Holdings(OURS, ())
            for name in order:
                beside = frozenset({self.share(name)} if name == "part" else ())
                holdings.hold(name, frozenset({self.GPU}), beside)
            assert set(holdings.in_pool(self.GPU.pool_id)) == {self.WHOLE, self.share("part")}
            holdings.check()
            holdings.hold("whole", frozenset(), frozenset())
            assert holdings.in_pool(self.GPU.pool_id) == [self.share("part")]
            holdings.hold("part", frozenset({self.GPU}), frozenset())
            assert holdings.in_pool(self.GPU.pool_id) == [self.WHOLE]
            holdings.check()

    def test_two_shares_of_one_holder_do_not_hide_who_has_it_whole(self) -> None:
        holdings = Holdings(OURS, ())
        pair = frozenset({self.share("part", "s"), self.share("part", "t")})
        holdings.hold("part", frozenset({self.GPU}), pair)
        assert set(holdings.in_pool(self.GPU.pool_id)) == pair
        holdings.hold("whole", frozenset({self.GPU}), frozenset())
        assert set(holdings.in_pool(self.GPU.pool_id)) == {self.WHOLE, *pair}
        holdings.check()
