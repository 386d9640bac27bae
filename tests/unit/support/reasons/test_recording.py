"""Each fault that makes a reason untrue is found where reasons come out, whatever asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from dracaena.api import reasons
from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation import explanation
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.nodes import matching
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.score import choices
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk import answers, lasting
from dracaena.controller.allocation.walk.lasting import LastingLacks, Never
from dracaena.controller.allocation.walk.shares.assignments import ShareAssignments
from dracaena.controller.allocation.walk.walk import Walk
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, device_name, machine, node, pod, pool_slice, request
from support.reasons.recording import JUDGED, untrue_reasons
from support.shares import holding_share, in_shares, share

EIGHT = machine("hopper", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, product_name="H100")
FOUR = machine("lovelace", blocks(4, inside="PIX", outside="PIX"), product_name="L40S")
SICK = Taint(key="xid", value="79", effect="NoSchedule")

Case = tuple[Inventory, ResourceClaim]


def cluster(*slices: ResourceSlice, **more: Any) -> Inventory:
    nodes = more.pop("nodes", [node(one.metadata.name.partition("-")[0]) for one in slices])
    return make_inventory(DRIVER, nodes=nodes, slices=slices, classes=[device_class()], **more)


def taken(inventory: Inventory, name: str, *ordinals: int) -> None:
    ids = frozenset(DeviceId(DRIVER, name, device_name(EIGHT, ordinal)) for ordinal in ordinals)
    inventory.hold(f"others-{name}", ids)


def failed() -> Case:
    """A node whose GPUs have all failed, and one that is full."""
    inventory = cluster(pool_slice("a", EIGHT, foreign={o: [SICK] for o in range(8)}), pool_slice("b", EIGHT))
    taken(inventory, "b", *range(8))
    return inventory, claim("c")


def empty() -> Case:
    """A pool without devices, and one of devices that cannot be read."""
    nothing, broken = pool_slice("a", EIGHT), pool_slice("b", EIGHT)
    unread = [msgspec.structs.replace(one, attributes={}) for one in broken.spec.devices]
    return cluster(with_devices(nothing, []), with_devices(broken, unread)), claim("c")


def shared() -> Case:
    """A GPU with little left, and others that are not shared."""
    page = in_shares(pool_slice("a", FOUR), 48, only=[0], others_have_memory=True)
    held = holding_share("held", "a", device_name(FOUR, 0), {"memory": "43Gi", "cores": "10"}, mode="MPS")
    return cluster(page, claims=[held]), claim("c", share("gpus", "20Gi", count=2))


def busy() -> Case:
    """Two nodes with some GPUs in use, of which one has a failed GPU too."""
    inventory = cluster(pool_slice("a", EIGHT, foreign={7: [SICK]}), pool_slice("b", EIGHT))
    taken(inventory, "a", 0, 1)
    taken(inventory, "b", 0, 1, 2)
    return inventory, claim("c", request(count=7))


def one_short() -> Case:
    """A node with as many free GPUs as are asked for, of which one has failed."""
    inventory = cluster(pool_slice("a", EIGHT, foreign={7: [SICK]}))
    taken(inventory, "a", 0, 1)
    return inventory, claim("c", request(count=6))


def huge() -> Case:
    return busy()[0], claim("c", request(count=9))


def selecting() -> Case:
    inventory = busy()[0]
    expression = f'device.attributes["{DRIVER}"].ordinal >= 6'
    return inventory, claim("c", request(count=3, selectors=[{"cel": {"expression": expression}}]))


def closed() -> Case:
    gone = Taint(key="node.kubernetes.io/unreachable", value="", effect="NoExecute")
    nodes = [node("a", unschedulable=True), node("b", taints=[gone])]
    return cluster(pool_slice("a", EIGHT), pool_slice("b", EIGHT), nodes=nodes), claim("c")


def misspelt() -> Case:
    expression = f'device.attributes["{DRIVER}"].?productNane.orValue("") == "H100"'
    return busy()[0], claim("c", request(selectors=[{"cel": {"expression": expression}}]))


CASES = (failed, empty, shared, busy, one_short, huge, selecting, closed, misspelt)


def test_objects_nested_as_deeply_as_they_can_be_read_are_judged_wherever_the_question_is_asked() -> None:
    """The judge may not be what a decision fails by: its stack is that of who asks."""
    parameters: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit() - 150):
        parameters = {"a": parameters}
    inventory, asked = empty()
    foreign = {"opaque": {"driver": "other.example", "parameters": parameters}}
    inventory.set_class(msgspec.structs.replace(device_class(), spec={"config": [foreign]}))

    def asked_from(depth: int) -> object:
        return asked_from(depth - 1) if depth else Allocator().explain(inventory, pod("p"), [asked])

    before = JUDGED.count
    with untrue_reasons() as untrue:
        assert asked_from(100) is not None
    assert (untrue, JUDGED.count) == ([], before + 1)


def with_devices(page: ResourceSlice, devices: list[Any]) -> ResourceSlice:
    return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=devices))


def explained(case: Case) -> tuple[str, list[str]]:
    """What is said, and what of it is untrue."""
    with untrue_reasons() as untrue:
        found = Allocator().explain(case[0], pod("p"), [case[1]])
    return str(found), list(untrue)


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_is_true_and_was_judged(case: Callable[[], Case]) -> None:
    before = JUDGED.count
    text, untrue = explained(case())
    assert untrue == [], text
    assert JUDGED.count == before + (case is not shared), "the claim for shares gets a whole GPU"


def without_regard_to_taints(patch: pytest.MonkeyPatch) -> None:
    """A one-GPU pod beside failed GPUs was said to find no free one."""
    patch.setattr(reasons, "all_tainted", lambda **_: "without a free GPU")


def every_pool_left_to_kube_scheduler(patch: pytest.MonkeyPatch) -> None:
    """A pool without devices was said to have none with our taint."""
    right = Inventory._state_now

    def wrong(self: Inventory, name: str) -> Any:
        pool, found = self.pool(name), right(self, name)
        if isinstance(found, str) and pool is not None:
            return "whose GPUs kube-scheduler allocates (no taint of ours)"
        return found

    patch.setattr(Inventory, "_state_now", wrong)


def whole_gpus_left_out_for_shares(patch: pytest.MonkeyPatch) -> None:
    """A claim with amounts was refused whole GPUs where others are shared."""

    def wrong(self: ShareAssignments, name: str, free: int, ordinal: int) -> Iterator[tuple[int, int]]:
        before, one = self._before(free, ordinal), self._question.kind.devices[ordinal]
        for held in one.device.capacities if before is not None and one is not None else ():
            if held.name == name and before is not None:
                left = held.value.nano - before.taken.get(name, 0)
                yield max(0, left), self._question.kind.shareable >> ordinal & 1

    patch.setattr(ShareAssignments, "_left_nano", wrong)


def tainted_gpus_in_use(patch: pytest.MonkeyPatch) -> None:
    """GPUs that taints keep back are said not to be free."""
    patch.setattr(answers, "of_untainted", lambda text: text)
    patch.setattr(LastingLacks, "_not_now", lambda _self, _name, text: text)


def one_node_counted_twice(patch: pytest.MonkeyPatch) -> None:
    right = explanation.ReasonCounts.add

    def wrong(self: explanation.ReasonCounts, name: str, text: str, *, lasting: bool = False) -> None:
        for _ in range(1 + (name == "a")):
            right(self, name, text, lasting=lasting)

    patch.setattr(explanation.ReasonCounts, "add", wrong)


def wrong_largest(patch: pytest.MonkeyPatch) -> None:
    right = Never.could_not
    patch.setattr(Never, "could_not", lambda self, gpus, *, too_small: right(self, gpus - 1, too_small=too_small))


def one_too_many_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(choices, "most_served", lambda counts, _eligible, _free: sum(counts) - 2)


def any_node_cordoned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeFilter, "unfit", lambda _self, _node: "cordoned")


def another_taint_named(patch: pytest.MonkeyPatch) -> None:
    right = matching.first_untolerated

    def wrong(taints: Any, tolerations: Any) -> Taint | None:
        found = right(taints, tolerations)
        return None if found is None else msgspec.structs.replace(found, key="dedicated")

    patch.setattr(matching, "first_untolerated", wrong)


def never_for_not_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LastingLacks, "never", lambda self, name: self._rules.shortfall(name))


def not_now_for_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LastingLacks, "never", lambda _self, _name: None)
    patch.setattr(lasting.LastingLacks, "_not_now", lambda *_: "with 9 or more GPUs, fewer than 9 of them free")


def known_name_called_unknown(patch: pytest.MonkeyPatch) -> None:
    right = reasons.unknown_name
    known = reasons.ReadName("attributes", DRIVER, "productName")
    patch.setattr(
        "dracaena.controller.allocation.state.published_names.unknown_name",
        lambda _read, names: right(known, {name for name in names if name != known.qualified}),
        raising=False,
    )
    patch.setattr(reasons, "unknown_name", lambda _read, names: right(known, set(names) - {known.qualified}))


def a_node_that_serves_it_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Walk, "best", lambda _self: None)
    patch.setattr(LastingLacks, "lack", lambda _self, _name: lasting.Lack("without a free GPU", lasting=False))


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], Case]] = {
    without_regard_to_taints: failed,
    every_pool_left_to_kube_scheduler: empty,
    whole_gpus_left_out_for_shares: shared,
    tainted_gpus_in_use: one_short,
    one_node_counted_twice: busy,
    wrong_largest: huge,
    one_too_many_served: selecting,
    any_node_cordoned: busy,
    another_taint_named: closed,
    never_for_not_now: busy,
    not_now_for_never: huge,
    known_name_called_unknown: misspelt,
    a_node_that_serves_it_passed_over: lambda: (cluster(pool_slice("a", EIGHT)), claim("c")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    text, untrue = explained(FAULTS[fault]())
    assert untrue, text


def test_a_reason_that_the_judge_does_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastingLacks, "lack", lambda _self, _name: lasting.Lack("out of luck", lasting=False))
    text, untrue = explained(busy())
    assert "out of luck" in text
    assert any("does not know" in one for one in untrue)


def test_a_world_of_tests_need_not_ask_for_it() -> None:
    with untrue_reasons() as untrue:
        Allocator().explain(busy()[0], pod("p"), [claim("c", request(count=7))])
    assert untrue == []
    assert isinstance(Allocator().explain(busy()[0], pod("p"), [claim("c", request(count=7))]), Unsatisfied)
