from __future__ import annotations

from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo import verify
from dracaena.demo.observation import Observation, links_in_words, read_observation
from support.observation import (
    CUT_MACHINE,
    LARGE,
    SHARED_MACHINE,
    SMALL,
    TOPOLOGY,
    UUIDS,
    claim,
    cut_slice,
    event,
    one_pod,
    part,
    pod,
    share,
    slice_of,
)


def test_a_running_pod_is_shown_with_its_gpus_by_nvml_index_and_their_links() -> None:
    seen = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 1, 0))
    (shown,) = seen.pods
    assert (shown.state, shown.node, shown.wanted, shown.waits) == ("Running", "n1", 2, "")
    assert shown.ordinals == (0, 1)
    assert shown.indexes == (10, 11)
    assert shown.uuids == (UUIDS[1], UUIDS[0])
    assert shown.links == "1 × NV2"
    assert seen.nodes[0].holders == {0: ("p1",), 1: ("p1",)}
    assert seen.nodes[0].free == 1


def test_links_are_counted_best_first() -> None:
    assert links_in_words(TOPOLOGY, range(3)) == "1 × NV2, 1 × PIX, 1 × SYS"
    assert links_in_words(TOPOLOGY, [1]) == ""


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = slice_of("n1", generation=1)
    seen = read_observation([old, slice_of("n1", generation=2)], [], [], [])
    assert len(seen.nodes[0].machine.gpus) == 3


def test_why_a_pod_waits_is_told_by_whoever_has_the_next_step() -> None:
    events = (event("p1-uid", "dracaena-controller", "ours", 1), event("p1-uid", "default-scheduler", "theirs", 2))
    assert one_pod(pod("p1", "c1"), claim("c1"), events=events).pods[0].waits == "ours"
    assert one_pod(pod("p1", "c1"), claim("c1"), events=events[1:]).pods[0].waits == "theirs"
    assert one_pod(pod("p1", "c1"), claim("c1")).pods[0].waits == "no node"
    bound = pod("p1", "c1", node="n1")
    assert one_pod(bound, claim("c1", 0, 1), events=events).pods[0].waits == ""
    kubelet = event("p1-uid", "kubelet", "not prepared", 3)
    assert one_pod(bound, claim("c1", 0, 1), events=(*events, kubelet)).pods[0].waits == "not prepared"


def test_a_pod_is_answered_by_devices_or_by_an_event_that_is_ours() -> None:
    ours, theirs = event("p1-uid", "dracaena-controller", "ours", 1), event("p1-uid", "default-scheduler", "theirs", 2)
    assert one_pod(pod("p1", "c1"), claim("c1"), events=(theirs,)).unanswered() == "no decision on p1"
    assert one_pod(pod("p1", "c1"), claim("c1"), events=(ours, theirs)).unanswered() is None
    assert one_pod(pod("p1", "c1"), claim("c1", 0, 1)).unanswered() is None


def test_states_between_pending_and_running() -> None:
    assert one_pod(pod("p1", "c1"), claim("c1")).pods[0].state == "Pending"
    assert one_pod(pod("p1", "c1"), claim("c1", 0, 1)).pods[0].state == "Allocated"
    assert one_pod(pod("p1", "c1", node="n1"), claim("c1", 0, 1)).pods[0].state == "Preparing"


def test_a_missing_claim_leaves_open_how_many_gpus_are_wanted() -> None:
    assert one_pod(pod("p1", "c1")).pods[0].wanted is None


# verify


def test_a_pod_with_its_gpus_passes() -> None:
    seen = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1))
    assert verify.running(seen, ()) == ()
    assert verify.held_once(seen) == ()


def test_a_pod_with_too_few_gpus_or_not_running_is_a_problem() -> None:
    few = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0))
    assert verify.running(few, ()) == ("pod p1 asks for 2 GPUs and has 1",)
    pending = one_pod(pod("p1", "c1"), claim("c1"))
    assert verify.running(pending, ()) == ("pod p1 is Pending: no node",)
    assert verify.running(pending, {"p1"}) == ()


def test_a_gpu_held_by_two_claims_is_a_problem() -> None:
    seen = one_pod(pod("p1", "c1"), claim("c1", 0, 1), claim("c2", 1, pod="p2"))
    assert verify.held_once(seen) == (f"n1/{gpu_device_name(UUIDS[1])} is held 2 times",)


def test_a_waiting_pod_must_be_there_pending_empty_handed_and_told_why() -> None:
    assert verify.waiting(one_pod(pod("p1", "c1"), claim("c1")), {"p1"}) == ()
    assert verify.waiting(one_pod(pod("p1", "c1"), claim("c1")), {"p2"}) == ("pod p2 does not exist",)
    assert verify.waiting(one_pod(pod("p1", "c1"), claim("c1", 0, 1, pod="")), {"p1"}) == (
        "pod p1 waits but its claim is allocated",
    )
    running = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1))
    assert verify.waiting(running, {"p1"}) == ("pod p1 is Running, expected Pending",)


def test_missing_annotations_are_a_problem() -> None:
    seen = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1))
    (problem,) = verify.pod_annotations(seen)
    assert problem.startswith("pod p1 is annotated with []")


def shared(*claims: ResourceClaim) -> Observation:
    """A node whose GPUs may be shared, with pods p1 and p2 that run."""
    pods = [pod(name, claim_name, node="n1", phase="Running") for name, claim_name in (("p1", "a"), ("p2", "b"))]
    return read_observation([slice_of("n1", machine=SHARED_MACHINE)], claims, pods, ())


def test_a_gpu_that_is_given_in_parts_says_how_much_is_taken_and_by_whom() -> None:
    seen = shared(share("a", 1, "4Gi", 30), share("b", 1, "5Gi", 20, pod="p2"))
    (node,) = seen.nodes
    assert node.label(0) == "free"
    assert node.label(1) == "2 shares: 9 of 16 GiB, 50 % of the cores; p1, p2"
    assert node.free == 2
    assert [one.amounts for one in seen.pods] == [
        "4 GiB of memory and 30 % of the cores",
        "5 GiB of memory and 20 % of the cores",
    ]


def test_a_share_of_everything_is_a_whole_gpu() -> None:
    seen = shared(share("a", 1, "16Gi", 0))
    (node,) = seen.nodes
    assert (node.label(1), node.shares) == ("p1", {})
    assert [one.amounts for one in seen.pods] == ["", ""]


def test_a_gpu_that_is_cut_shows_its_parts_and_who_has_them() -> None:
    pods = [pod(name, name, node="n1", phase="Running") for name in ("a", "b")]
    claims = [part("a", SMALL, "MIG-1", pod="a"), part("b", LARGE, pod="b")]
    seen = read_observation([cut_slice("n1")], claims, pods, [])
    (node,) = seen.nodes
    assert [(one.profile, one.start, one.size, one.holders) for one in node.parts] == [
        ("3g.40gb", 0, 4, ("b",)),
        ("1g.10gb", 6, 1, ("a",)),
    ]
    assert node.slices == {0: 8}
    assert (node.free, node.label(0)) == (0, "cut into 2 parts; b, a")
    small, large = seen.pods
    assert (small.ordinals, small.uuids, small.amounts) == ((0,), ("MIG-1",), "1g.10gb at memory slice 6")
    assert (large.ordinals, large.uuids) == ((0,), ()), "its UUID is not told yet"
    assert verify.running(seen, ()) == verify.held_once(seen) == ()


def test_a_gpu_that_can_be_cut_and_is_not_is_like_any_other() -> None:
    (node,) = read_observation([cut_slice("n1")], [], [], []).nodes
    assert (node.parts, node.free, node.label(0)) == ((), len(CUT_MACHINE.gpus), "free")
