"""Claims on a board whose partitions Fabric Manager activates: nobody is linked with somebody else's GPU, each has its
partition, and none is active in the end, whatever is killed, hangs or is started anew in between.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.changes.change import Act, End, How, Note, OwnersAlone, ThingPlan, Wants
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import Change, FabricPartitions
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from support.fabric_node import MODULES, FabricNode, fabric_node, prepare, unprepare
from support.fake_fabric_manager import (
    DOWN,
    GENERIC_ERROR,
    HGX_H100,
    NOT_READY,
    NVLINK_ERROR,
    PARTITION_ID_NOT_IN_USE,
    RUNNING,
    WAITING,
)
from support.killed_steps import StopError
from support.seeds import sampled
from support.vfio_node import NEVER

REFUSALS = [GENERIC_ERROR, NVLINK_ERROR, PARTITION_ID_NOT_IN_USE, NOT_READY]
CALLS = ["fmActivateFabricPartition", "fmDeactivateFabricPartition", "fmSetActivatedFabricPartitions", "fmConnect"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FabricNode]:
    with fabric_node(tmp_path) as made:
        yield made


def module_of(node: FabricNode, device: PreparedDevice) -> int:
    return MODULES[node.addresses.index(str(device.pci_bus_id))]


def check(node: FabricNode, foreign: Sequence[int] = (), *, is_forgotten: bool = False) -> set[int]:
    """Look at what claims have against what the switches do; return the sizes of the partitions that claims have."""
    active = node.manager.active
    strangers = set(active) - set(node.noted_partitions()) - set(foreign)
    # Started anew it keeps what the switches had, somebody else's too, until it is told.
    assert not strangers or node.manager.life == WAITING, f"partitions {strangers} are active, and no note says so"
    assert set(foreign) <= set(active), "somebody else's partition was deactivated"
    sizes = set()
    for prepared in node.done():
        whole = frozenset(module_of(node, d) for d in prepared.devices if d.is_whole_gpu and d.share_id is None)
        every = frozenset(module_of(node, d) for d in prepared.devices)
        linked = [number for number in active if every & set(HGX_H100[number])]
        if not is_forgotten:
            assert every <= {module for number in linked for module in HGX_H100[number]}, (
                f"{prepared.claim} has no links"
            )
            together = [number for number, modules in HGX_H100.items() if frozenset(modules) == whole]
            assert set(together) <= set(active), f"{prepared.claim} is no partition"
        for number in linked:
            reached = set(HGX_H100[number]) - every
            assert not reached, f"{prepared.claim} is linked with modules {reached} of others"
        sizes |= {len(HGX_H100[number]) for number in linked}
    return sizes


class Walk:
    """Random claims on 8 GPUs, with kills, refusals, silence and restarts of Fabric Manager in between."""

    def __init__(self, node: FabricNode, seed: int) -> None:
        self.node, self.chance = node, random.Random(seed)
        self.claims: list[ResourceClaim] = []
        self.foreign: list[int] = []
        self.is_forgotten = False
        """Fabric Manager was started from the beginning, and no reading has seen it yet."""
        self.sizes: set[int] = set()

    def step(self) -> None:
        chance, node = self.chance, self.node
        for kill in (node.steps, node.drivers, node.port):
            kill.left = chance.randrange(1, 12) if chance.random() < 0.15 else NEVER
        if chance.random() < 0.2:
            setattr(node.manager, chance.choice(["silent", "late"]), [chance.choice(CALLS[:2])])
        elif chance.random() < 0.1:
            setattr(
                node.manager, chance.choice(["fails", "fails_after"]), {chance.choice(CALLS): chance.choice(REFUSALS)}
            )
        try:
            with suppress(DracaenaError):
                self._act()
        except StopError:
            self._restart()
        for kill in (node.steps, node.drivers, node.port):
            kill.left = NEVER
        if chance.random() < 0.6:
            self._quiet()
        # What is pending comes before anybody looks: the switches do what they will do.
        self.sizes |= check(node, self.foreign, is_forgotten=self.is_forgotten)

    def _act(self) -> None:
        act = self.chance.random()
        if act < 0.45 or not self.claims:
            self._prepare()
        elif act < 0.75:
            self._unprepare(self.chance.choice(self.claims))
        elif act < 0.83:
            self._look()
        elif act < 0.88:
            self._restart()
            self.node.node.recovery.recover(())
        elif act < 0.93:
            self._restart_fabric_manager()
        elif act < 0.98:
            self._somebody_else()
        else:
            self.foreign, self.is_forgotten = [], False
            self.node.reboot()

    def _look(self) -> None:
        node = self.node
        node.look()
        self._seen()
        node.node.recovery.follow_devices()

    def _seen(self) -> None:
        fabric = self.node.node.pool.fabric
        if (
            fabric is not None
            and not fabric.problem
            and not any("cannot be" in t.text for t in self.node.fabric_troubles)
        ):
            self.is_forgotten = False

    def _restart(self) -> None:
        for kill in (self.node.steps, self.node.drivers):
            kill.left = NEVER
        self.node.restart()
        self._seen()

    def _restart_fabric_manager(self) -> None:
        manager, resuming = self.node.manager, self.chance.random() < 0.6
        if self.chance.random() < 0.3:
            manager.life = DOWN
            with suppress(DracaenaError):
                self._look()
        manager.restart(resuming=resuming)
        self.foreign = []  # who does not tell it loses what it had
        self.is_forgotten = self.is_forgotten or not resuming
        if self.chance.random() < 0.7:
            self._look()

    def _somebody_else(self) -> None:
        manager = self.node.manager
        if self.foreign:
            manager.active.remove(self.foreign.pop())
            return
        number = self.chance.choice(sorted(HGX_H100))
        if manager.life != RUNNING or self.is_forgotten or manager.pending or self.node.node.node_claims.current():
            return
        if not manager.active:
            manager.active.append(number)
            self.foreign.append(number)

    def _prepare(self) -> None:
        chance, node = self.chance, self.node
        if self.claims and chance.random() < 0.3:
            claim = chance.choice(self.claims)
        else:
            name, ordinal = f"c{len(node.claims.by_key)}", chance.choice([0, 0, 0, 1, 2])
            modules = chance.choice([*HGX_H100.values(), tuple(chance.sample(range(1, 9), chance.randrange(1, 4)))])
            made: Callable[[], ResourceClaim] = chance.choice(
                [
                    lambda: node.whole_of(name, *modules),
                    lambda: node.whole_of(name, *modules),
                    lambda: node.vfio_of(name, *modules[:4]),
                    lambda: node.share(name, ordinal),
                    lambda: node.part(name, ordinal, chance.randrange(7)),
                ]
            )
            claim = made()
            self.claims.append(claim)
        prepare(node, claim)

    def _unprepare(self, claim: ResourceClaim) -> None:
        unprepare(self.node, claim)
        self.claims.remove(claim)

    def _quiet(self) -> None:
        manager = self.node.manager
        manager.silent, manager.late, manager.fails, manager.fails_after = [], [], {}, {}

    def end(self) -> None:
        """End all claims: no partition is active, and all GPUs are with the NVIDIA driver."""
        node = self.node
        self._quiet()
        if node.manager.life == DOWN:
            node.manager.life = RUNNING
        for number in self.foreign:
            node.manager.active.remove(number)
        self._restart()
        for claim in list(self.claims):
            self._unprepare(claim)
        node.look()
        assert node.manager.life != WAITING
        assert (node.manager.active, node.manager.pending) == ([], [])
        assert {node.drivers_of(ordinal)[0] for ordinal in range(8)} == {"nvidia"}
        assert node.node.node_claims.by_boot() == ((), (), ())


def walk(node: FabricNode, seed: int, steps: int = 20) -> Walk:
    made = Walk(node, seed)
    for _ in range(steps):
        made.step()
    made.end()
    return made


@pytest.mark.parametrize("seed", sampled(range(1000), 3, 40))
def test_each_claim_has_its_partition_and_nobody_elses(node: FabricNode, seed: int) -> None:
    walk(node, seed)


@pytest.mark.search
def test_a_few_of_these_have_partitions_of_all_sizes(node: FabricNode) -> None:
    assert {size for seed in range(8) for size in walk(node, seed).sizes} == {1, 2, 4, 8}


@pytest.mark.parametrize("after", ["again", "unprepare", "reboot", "restarted", "broken"])
@pytest.mark.parametrize("kill", ["port", pytest.param("steps", marks=pytest.mark.search)])
def test_killed_at_each_step_a_claim_comes_and_goes(node: FabricNode, kill: str, after: str) -> None:
    """`after`: what comes then: the same call, the end of the claim, a boot, a Fabric Manager that begins anew, or
    the same call with a checkpoint that broke."""
    claims = [node.whole_of("whole", 1, 3), node.share("share", MODULES.index(5)), node.whole_of("two", 2, 8)]
    count = 0
    for claim in claims:
        for call in (prepare, unprepare):
            left = 1
            while _is_killed(node, call, claim, kill, left):
                count += 1
                check(node)
                _follow(node, claim, after)
                check(node)
                unprepare(node, claim)
                assert node.manager.active == []
                if call is unprepare:
                    prepare(node, claim)
                left += 1
        assert node.manager.active == []
    assert count >= (10 if kill == "port" else 20)


def _is_killed(
    node: FabricNode, call: Callable[[FabricNode, ResourceClaim], None], claim: ResourceClaim, kill: str, left: int
) -> bool:
    getattr(node, kill).left = left
    try:
        call(node, claim)
    except StopError:
        node.restart()
        return True
    getattr(node, kill).left = NEVER
    return False


def _follow(node: FabricNode, claim: ResourceClaim, after: str) -> None:
    if after == "reboot":
        node.reboot()
    elif after == "restarted":
        node.manager.restart(resuming=True)
        node.look()
        node.node.recovery.recover(())
    elif after == "again":
        prepare(node, claim)
    elif after == "broken":
        checkpoint = node.folder / "claims" / f"{claim.metadata.uid}.json"
        if checkpoint.exists():
            checkpoint.write_bytes(b"torn")
        node.restart()
        prepare(node, claim)


class ForgetsWhoShares(FabricPartitions):
    """Whoever joins or ends deactivates it, though others have it."""

    def asked(self, wants: Wants) -> Any:
        return len(wants)

    def plan(self, wants: Wants, seen: Any, note: Any) -> Any:
        has_others = isinstance(note, Note) and bool(note.owners)
        return super().plan({} if has_others else wants, seen, note)


class NotesAfterwards(FabricPartitions):
    def plan(self, wants: Wants, seen: Any, note: Any) -> Any:
        plan = super().plan(wants, seen, note)
        return plan if plan.act is None else dataclasses.replace(plan, noted=None)


class DoesNotUndo(FabricPartitions):
    def do(self, acts: Sequence[Act[Change]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        return [End() if act.step is Change.DEACTIVATE else super(DoesNotUndo, self)._do(act) for act in acts]


class TakesWhatIsActive(FabricPartitions):
    """What is active is taken for ours, and whatever Fabric Manager answers, for activated."""

    def plan(self, wants: Wants, seen: Any, note: Any) -> Any:
        if wants and seen is not None and seen.others:
            return ThingPlan(OwnersAlone(), Change.ACTIVATE)
        return super().plan(wants, seen, note)

    def do(self, acts: Sequence[Act[Change]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        super().do(acts, left_s)
        return [End()] * len(acts)


class DropsTheNoteOfALateActivation(FabricPartitions):
    """An activation without an answer is taken for one that did nothing."""

    def do(self, acts: Sequence[Act[Change]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        ends = super().do(acts, left_s)
        return [End(How.REFUSED, end.problem) if end.how is How.UNANSWERED else end for end in ends]


class TellsNothing(FabricPartitions):
    """In its restart mode, Fabric Manager is told that none is active."""

    def noted_numbers(self) -> frozenset[int]:
        return frozenset()


FAULTS = [
    ForgetsWhoShares,
    NotesAfterwards,
    DoesNotUndo,
    TakesWhatIsActive,
    DropsTheNoteOfALateActivation,
    TellsNothing,
]


@pytest.mark.search
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(node: FabricNode, fault: type[FabricPartitions]) -> None:
    node.fabric_kind = fault
    node.restart()
    with pytest.raises(AssertionError):  # noqa: PT012 - one of the seeds
        for seed in range(16):
            walk(node, seed)
