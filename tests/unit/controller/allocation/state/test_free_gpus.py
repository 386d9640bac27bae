from __future__ import annotations

import random

import pytest

from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dracaena.controller.allocation.state.free_gpus import NODES_A_TURN, FreeGpus, free_gpus_in_turns
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from dracaena.controller.views.snapshot import SnapshotMaker, Watched
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice
from support.clusters import SICK, random_cluster
from support.passthrough import NO_GPUS, passthrough_gpu, with_passthrough
from support.seeds import sampled
from support.shares import holding_share, in_shares

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
FULL = Taint(key="node.kubernetes.io/memory-pressure", effect="PreferNoSchedule")
DEDICATED = Taint(key="nvidia.com/gpu", effect="NoSchedule")


def free_gpus(inventory: Inventory) -> FreeGpus:
    *_, found = free_gpus_in_turns(inventory)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", sampled(range(1_000), 40, 200))
def test_it_counts_what_the_page_counts_which_reads_each_node_by_itself(seed: int) -> None:
    cluster = random_cluster(random.Random(seed))
    claims = [
        holding(claim(f"{name}-{ordinal}"), name, device_name(cluster.machines[name], ordinal))
        for name, taken in cluster.taken.items()
        for ordinal in sorted(taken)
    ]
    slices = list(cluster.slices.values())
    inventory = make_inventory(DRIVER, nodes=cluster.nodes, slices=slices, claims=claims)
    *_, snapshot = SnapshotMaker(DRIVER).turns(Watched(cluster.nodes, slices, claims))
    assert snapshot is not None
    counts = [sum(line.open_gpus) for line in snapshot.lines]
    assert free_gpus(inventory) == FreeGpus(sum(counts), max(counts, default=0))


def test_nodes_that_take_no_pods_do_not_count_and_those_of_a_team_do() -> None:
    nodes = [
        node("cordoned", unschedulable=True),
        node("lost", taints=[NOT_READY]),
        node("full", taints=[FULL, DEDICATED]),
    ]
    slices = [pool_slice(each.metadata.name, FOUR) for each in nodes]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices)
    assert free_gpus(inventory) == FreeGpus(4, 4)
    inventory.set_node(node("full", taints=[NOT_READY]))
    assert free_gpus(inventory) == FreeGpus(0, 0)


def test_a_gpu_of_which_somebody_has_a_share_is_not_free() -> None:
    share = holding_share("s", "n", device_name(FOUR, 3), {"memory": "20Gi"}, mode="MPS")
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[in_shares(pool_slice("n", FOUR))], claims=[share])
    assert free_gpus(inventory) == FreeGpus(3, 3)


def test_a_taint_counts_on_one_gpu_and_a_rule_for_all_gpus_on_each() -> None:
    slices = [pool_slice("n", FOUR, foreign={1: [SICK]})]
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=slices)
    assert free_gpus(inventory) == FreeGpus(3, 3)
    spec = DeviceTaintRuleSpec(SICK, DeviceTaintSelector(driver=DRIVER))
    inventory.set_taint_rule(DeviceTaintRule(ObjectMeta(name="all"), spec=spec))
    assert free_gpus(inventory) == FreeGpus(0, 0)
    inventory.remove_taint_rule("all")
    assert free_gpus(inventory) == FreeGpus(3, 3)


def test_a_gpu_for_virtual_machines_is_none_that_a_pod_waits_beside() -> None:
    both = with_passthrough(FOUR, [passthrough_gpu(number) for number in range(4)])
    only = with_passthrough(NO_GPUS, [passthrough_gpu(number) for number in range(8)])
    nodes = [node("both"), node("only")]
    slices = [pool_slice("both", both), pool_slice("only", only)]
    assert free_gpus(make_inventory(DRIVER, nodes=nodes, slices=slices)) == FreeGpus(4, 4)
    *_, snapshot = SnapshotMaker(DRIVER).turns(Watched(nodes, slices, []))
    assert snapshot is not None
    assert {line.name: sum(line.open_gpus) for line in snapshot.lines} == {"both": 4, "only": 0}
    assert {line.name: line.free for line in snapshot.lines} == {"both": 8, "only": 8}


def test_what_changes_between_turns_is_counted_or_left_out_and_breaks_nothing() -> None:
    names = [f"n{number:04}" for number in range(NODES_A_TURN + 2)]
    slices = [pool_slice(name, FOUR) for name in (*names, "n9999")]
    inventory = make_inventory(DRIVER, nodes=map(node, names), slices=slices)
    turns = free_gpus_in_turns(inventory)
    assert next(turns) is None
    inventory.remove_node(names[0])  # has been counted
    inventory.remove_node(names[-1])
    inventory.set_node(node("n9999"))
    assert list(turns) == [None, FreeGpus(4 * (NODES_A_TURN + 2), 4)]


def test_a_turn_looks_at_no_more_nodes_where_all_are_in_different_states(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = [machine(f"of-{gpus}", blocks(gpus, inside="PIX", outside="PIX")) for gpus in range(1, 9)]
    boxes = [boxes[number % 8] for number in range(2 * NODES_A_TURN + 1)]
    names = [f"n{number:04}" for number in range(len(boxes))]
    inventory = make_inventory(DRIVER, nodes=map(node, names), slices=map(pool_slice, names, boxes))
    looked_at: list[str] = []
    look = inventory.state

    def noted(name: str) -> NodeState | str:
        looked_at.append(name)
        return look(name)

    monkeypatch.setattr(inventory, "state", noted)
    so_far = [len(looked_at) for _ in free_gpus_in_turns(inventory)]
    assert so_far == [NODES_A_TURN, 2 * NODES_A_TURN, len(names), len(names)]
    assert looked_at == names
