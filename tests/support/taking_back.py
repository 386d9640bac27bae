"""A claim that is about to be taken back, and what others do with it meanwhile."""

from __future__ import annotations

import msgspec

from dracaena.api.resource_objects import ConsumerReference, ResourceClaimStatus
from support.allocation import claim, node, pod
from support.inventories import free_mask
from support.reconciling import TWO, Bench

WORDS = "0/1 nodes are available: 1 Insufficient cpu."


def ready(*, said: str = WORDS) -> Bench:
    """Pod p has claim c, which is about to be taken back; kube-scheduler has said something about the pod."""
    bench = Bench(a=TWO)
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    if said:
        bench.say("p", said)
    bench.cluster.intake.node_changed(node("a"), node("a", unschedulable=True))  # so that nothing is allocated anew
    bench.run()
    bench.api.writes.clear()
    bench.take_back("c")
    return bench


def dropped(**options: str) -> Bench:
    """The reservation is dropped."""
    bench = ready(**options)
    bench.run()
    assert (bench.on_node("c"), bench.users("c")) == ("a", [])
    return bench


def writes(bench: Bench) -> list[str]:
    return [verb for verb, _ in bench.api.writes]


def ended(bench: Bench, how: str) -> bool:
    counts = {end: bench.metric("take_backs_total", reason="refused", end=end) for end in ("cleared", "kept")}
    return counts == {"cleared": None, "kept": None, how: 1} and not bench.record("c").ending


def reserve(bench: Bench, *names: str) -> None:
    """Let kube-scheduler reserve the claim for pods, as it does before a bind."""
    stored = bench.api.claims["default/c"]
    users = [ConsumerReference("pods", name, f"uid-{name}") for name in names]
    bench.api.put(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=users)))


def clear(bench: Bench) -> None:
    """Let somebody else clear the allocation."""
    bench.api.put(msgspec.structs.replace(bench.api.claims["default/c"], status=ResourceClaimStatus()))


def free(bench: Bench) -> int:
    """How many GPUs of the node nobody holds."""
    return free_mask(bench.cluster._state.inventory, "a").bit_count()
