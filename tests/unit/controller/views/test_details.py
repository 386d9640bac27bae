"""What is shown of one node and one pod, and as text and JSON; with names made of markup, and with names hidden."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from dracaena.api.decision import Decision, RunnerUp
from dracaena.api.fabric import HGX_FABRIC
from dracaena.api.gpu_states import FREE, PARTS, TAKEN
from dracaena.api.holders import HIDDEN
from dracaena.api.names import decision_driver
from dracaena.api.node_status import node_document, tree_lines
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import AllocationConfig, OpaqueConfig, ResourceClaim
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.views.details import MOST_TREES, graph_text, node_view, pod_view
from dracaena.controller.views.names import Sight
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, WaitingPod, Watched
from support.allocation import (
    DRIVER,
    allocated,
    blocks,
    claim,
    decided,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    with_configs,
)
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100, MigPart
from support.shares import holding_share, in_shares

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name='<b>"T4"</b>\n\x1b[31m')
DECISION = Decision(
    "n", "1 pair NV12", (("bandwidth_gb_s", 300), ("numa_nodes", 1)), 2,
    RunnerUp("m", "1 pair SYS", "bandwidth_gb_s", ("gpu-y",), (("bandwidth_gb_s", 20),)),
)  # fmt: skip


def everything(namespace: str) -> bool:
    return True


def nothing(namespace: str) -> bool:
    return False


def used(name: str, device: str, *users: Pod, node_name: str = "n") -> ResourceClaim:
    held = holding(claim(name), node_name, device)
    assert held.status.allocation is not None
    return allocated(claim(name), msgspec.to_builtins(held.status.allocation), *users)


def cluster(*claims: ResourceClaim, names: tuple[str, ...] = ("n",)) -> ClusterSnapshot:
    watched = Watched([node(name) for name in names], [pool_slice(name, FOUR) for name in names], claims)
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    return snapshot


def viewed(watched: Watched, name: str, sight: Sight = everything) -> dict[str, Any]:
    """Return what the page shows of a node."""
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    return view_in(snapshot, name, sight)


def view_in(snapshot: ClusterSnapshot, name: str, sight: Sight = everything) -> dict[str, Any]:
    found, line = snapshot.node(name), snapshot.line(name)
    assert found is not None
    assert line is not None
    return node_view(found, line, sight)


def test_a_node_is_a_tree_with_links_and_who_has_what() -> None:
    view = view_in(cluster(used("c", device_name(FOUR, 1), pod("a"))), "n")
    assert [branch["level"] for branch in view["tree"]["children"]] == ["SYS"]
    assert [gpu["nvlinkGroup"] for gpu in view["gpus"]] == [1, 1, 2, 2]
    assert view["matrix"][0] == ["X", "NV12", "SYS", "SYS"]
    assert [gpu["sign"] for gpu in view["gpus"]] == [FREE, TAKEN, FREE, FREE]
    (holder,) = view["gpus"][1]["heldBy"]
    assert (holder["namespace"], holder["claim"], holder["pods"]) == ("default", "c", ["a"])


def test_a_node_tells_which_sets_are_whole_partitions() -> None:
    plain = machine("board", blocks(8, inside="NV18", outside="NV18"))
    gpus = tuple(replace(gpu, module_id=place) for place, gpu in enumerate(plain.gpus, start=1))
    board = replace(plain, gpus=gpus, fabric=HGX_FABRIC)
    *_, snapshot = SnapshotMaker(DRIVER).turns(Watched([node("n")], [pool_slice("n", board)], []))
    assert snapshot is not None
    found = snapshot.node("n")
    assert found is not None
    sets = view_in(snapshot, "n")["partitions"]
    assert sets == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [0, 2], [1, 3], [4, 6], [5, 7]]
    assert node_document(found)["partitions"] == sets
    assert "  whole partitions of 4: GPU0-3 [free]; GPU4-7 [free]" in tree_lines(found)


def test_a_reader_who_may_see_no_names_sees_that_devices_are_taken_and_nothing_else() -> None:
    snapshot = cluster(used("secret-claim", device_name(FOUR, 1), pod("secret-pod")))
    shown = json.dumps([view_in(snapshot, "n", nothing), graph_text(snapshot, nothing)])
    assert "secret" not in shown
    assert "default" not in shown
    assert HIDDEN in shown
    assert [gpu["sign"] for gpu in view_in(snapshot, "n", nothing)["gpus"]] == [FREE, TAKEN, FREE, FREE]


def test_texts_of_others_stay_on_their_line_and_obey_no_terminal() -> None:
    snapshot = cluster(used("c", device_name(FOUR, 1), pod('"><script>\n')))
    text = graph_text(snapshot, everything)
    assert text is not None
    assert "\x1b" not in text
    assert text.count("\n") == len(text.splitlines())
    assert "\\u001b" not in json.dumps(view_in(snapshot, "n")["gpus"][0])


def test_parts_and_shares_are_reported_with_where_and_how_much() -> None:
    made = machine("pairs", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
    part = part_name(made, 1, MigPart("4g.40gb", 0, 4, 4))
    view = viewed(Watched([node("a")], mig_slices("a", made, [A100, A100]), [holding(claim("c"), "a", part)]), "a")
    assert [gpu["sign"] for gpu in view["gpus"]] == [FREE, PARTS]
    (cut,) = [each for each in view["cut"] if each["parts"]]
    assert (cut["gpu"], [(each["start"], each["size"], each["profile"]) for each in cut["parts"]]) == (
        1,
        [(0, 4, "4g.40gb")],
    )
    share = holding_share("s", "n", device_name(FOUR, 3), {"memory": "20Gi", "cores": "30"}, mode="MPS")
    watched = Watched([node("n")], [in_shares(pool_slice("n", FOUR))], [share])
    (holder,) = viewed(watched, "n")["gpus"][3]["heldBy"]
    assert (holder["amount"], holder["percent"], holder["mode"]) == (
        "20 GiB of memory and 30 % of the cores",
        25,
        "MPS",
    )


def test_a_pod_is_followed_from_waiting_to_running() -> None:
    waits = pod("p", "c")
    told = WaitingPod("default", "p", "unsatisfiable", Reasons("0/1 nodes fit"), 3.0)
    view = pod_view(DRIVER, waits, {"c": claim("c")}, told, 5.0)
    assert (view["state"], view["waiting"]["why"], view["waiting"]["help"]) == ("waiting", "0/1 nodes fit", [])
    has = used("c", device_name(FOUR, 1), waits)
    assert pod_view(DRIVER, waits, {"c": has}, told, 5.0)["state"] == "allocated"
    assert pod_view(DRIVER, waits, {"c": has}, told, 5.0)["waiting"] is None
    running = msgspec.structs.replace(waits, status=msgspec.structs.replace(waits.status, phase="Running"))
    assert pod_view(DRIVER, running, {"c": has}, None, 5.0)["words"] == "runs"
    assert pod_view(DRIVER, waits, {"c": None}, None, 5.0)["claims"][0]["claim"] is None


def test_a_decision_is_reported_next_to_the_next_best() -> None:
    has = used("c", device_name(FOUR, 1), pod("p"))
    (shown,) = pod_view(DRIVER, pod("p", "c"), {"c": decided(has, DECISION)}, None, 5.0)["claims"]
    decision = shown["decision"]
    assert decision["runnerUp"] == {"node": "m", "links": "1 pair SYS"}
    assert decision["parts"][0] == {"part": "bandwidth", "chosen": "300 GB/s", "runnerUp": "20 GB/s", "decided": True}
    assert decision["parts"][1]["runnerUp"] is None
    assert "next best: 1 pair SYS on m" in decision["words"]


def test_a_decision_that_a_later_version_wrote_says_so() -> None:
    has = used("c", device_name(FOUR, 1), pod("p"))
    later = OpaqueConfig(decision_driver(DRIVER), msgspec.Raw(b'{"kind": "Decision"}'))
    unread = with_configs(has, AllocationConfig("FromClass", [], later))
    (shown,) = pod_view(DRIVER, pod("p", "c"), {"c": unread}, None, 5.0)["claims"]
    assert "the decision in status.allocation" in shown["decision"]["words"]


def test_what_a_user_writes_into_an_annotation_or_a_config_is_no_decision() -> None:
    has = used("c", device_name(FOUR, 1), pod("p"))
    ours = decided(has, DECISION).status.allocation
    assert ours is not None
    copied = [msgspec.structs.replace(one, source="FromClaim") for one in ours.devices.config]
    note = {f"{DRIVER}/decision": '{"node":"m","links":"","score":[],"podDevices":1}'}
    forged = msgspec.structs.replace(has, metadata=msgspec.structs.replace(has.metadata, annotations=note))
    (shown,) = pod_view(DRIVER, pod("p", "c"), {"c": with_configs(forged, *copied)}, None, 5.0)["claims"]
    assert shown["decision"] is None


def test_the_graph_draws_few_nodes_as_trees_and_many_as_lines() -> None:
    few = graph_text(cluster(used("c", device_name(FOUR, 1), pod("a"))), everything)
    assert few is not None
    assert "[default/c for a]" in few
    many = cluster(names=tuple(f"n{number:03}" for number in range(MOST_TREES + 1)))
    lines = (graph_text(many, everything) or "").splitlines()
    assert len(lines) == MOST_TREES + 2
    assert lines[0].startswith("n000: 4 of 4 GPUs free")
    one = graph_text(many, everything, node="n007")
    assert one is not None
    assert "4 GPUs: 4 free" in one.splitlines()[0]
    assert graph_text(many, everything, node="other") is None
    assert graph_text(cluster(names=()), everything) == f"no node publishes devices of {DRIVER}\n"
