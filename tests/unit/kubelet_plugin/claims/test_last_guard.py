"""Never more of a GPU than it has, never a whole one beside a share or a part, whatever is killed when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, PoolName, gpu_device_name
from dracaena.api.quantity import parse_bytes
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims import last_guard
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.device_kinds import plan
from dracaena.kubelet_plugin.device_kinds.holders import overdrawn
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from support.killed_steps import KilledSteps, StopError
from support.machines import divided_machine
from support.plugin import (
    BEST_EFFORT,
    DRIVER,
    GPU_MEMORY_BYTES,
    NODE,
    FakeClaims,
    PluginNode,
    claim_of,
    device_name,
    make_claim,
    make_share,
    reference_to,
    share_of,
)
from support.seeds import in_tiers


def test_shares_are_given_until_the_memory_is_gone(tmp_path: Path) -> None:
    shares = [make_share(f"c{n}", memory="30Gi") for n in range(3)]
    node = PluginNode(tmp_path, FakeClaims(*shares))
    for share in shares[:2]:
        node.state.prepare(reference_to(share))
    text = (
        r"30Gi of the memory of gpu-\S+ do not fit next to 60Gi that other claims have: it has 80Gi "
        r"\(held by claim default/c0 \(UID c0-uid\), claim default/c1 \(UID c1-uid\)\)"
    )
    with pytest.raises(DeviceHeldError, match=text):
        node.state.prepare(reference_to(shares[2]))
    node.state.unprepare(reference_to(shares[0]))
    node.state.prepare(reference_to(shares[2]))


def test_ceilings_of_cores_sum_to_the_whole_gpu_at_most(tmp_path: Path) -> None:
    shares = [make_share("a", cores=60), make_share("b", cores=0), make_share("c", cores=41)]
    node = PluginNode(tmp_path, FakeClaims(*shares))
    for share in shares[:2]:
        node.state.prepare(reference_to(share))
    with pytest.raises(DeviceHeldError, match=r"41 % of the cores of .* do not fit next to 60 %"):
        node.state.prepare(reference_to(shares[2]))


def test_a_share_of_everything_leaves_room_for_nobody(tmp_path: Path) -> None:
    claims = [make_share("all", memory="80Gi"), make_share("little", memory="1Mi")]
    node = PluginNode(tmp_path, FakeClaims(*claims))
    node.state.prepare(reference_to(claims[0]))
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(claims[1]))


def test_an_old_share_of_unknown_size_counts_as_everything(tmp_path: Path) -> None:
    """As a broken checkpoint leaves it: its CDI spec tells which share it is, not how much."""
    claims = [make_share("old", memory="1Gi"), make_share("new", memory="1Gi")]
    node = PluginNode(tmp_path, FakeClaims(*claims))
    node.state.prepare(reference_to(claims[0]))
    (tmp_path / "claims" / "old-uid.json").write_bytes(b"broken")
    node = PluginNode(tmp_path, FakeClaims(*claims))
    with pytest.raises(DeviceHeldError, match=r"1Gi of the memory .* do not fit next to 80Gi"):
        node.state.prepare(reference_to(claims[1]))
    node.state.prepare(reference_to(claims[0]))
    node.state.prepare(reference_to(claims[1]))


# a slow, obvious model

DIVIDED = divided_machine()
Use = tuple[str, str, int, int]
"""GPU; what of it: `whole`, `share` or `part`; then bytes and percent of a share, the number of a part."""


def uses(claim: ResourceClaim) -> list[Use]:
    assert claim.status.allocation is not None
    found: list[Use] = []
    for result in claim.status.allocation.devices.results:
        part = next((n for n, m in enumerate(DIVIDED.mig_devices) if m.device_name == result.device), None)
        if part is not None:
            found.append((gpu_device_name(DIVIDED.mig_devices[part].parent_uuid), "part", part, 0))
        elif result.share_id is None:
            found.append((result.device, "whole", 0, 0))
        else:
            consumed = result.consumed_capacity
            found.append((result.device, "share", parse_bytes(consumed["memory"]), int(consumed["cores"])))
    return found


def is_legal(claims: Iterable[ResourceClaim]) -> bool:
    every = [use for claim in claims for use in uses(claim)]
    for gpu in {use[0] for use in every}:
        here = [use for use in every if use[0] == gpu]
        kinds = {use[1] for use in here}
        if len(kinds) > 1 or (kinds == {"whole"} and len(here) > 1):
            return False
        if kinds == {"share"}:
            if sum(use[2] for use in here) > GPU_MEMORY_BYTES or sum(use[3] for use in here) > 100:
                return False
        # All parts exist at one time, so they have nothing in common.
        elif kinds == {"part"} and len(here) != len(set(here)):
            return False
    return True


def machine(*, divided: bool) -> Machine:
    """Two GPUs with 80 GiB, the second of them divided or not."""
    gpus = [replace(gpu, memory_bytes=GPU_MEMORY_BYTES, mig_enabled=False) for gpu in DIVIDED.gpus]
    parents = {mig.parent_uuid for mig in DIVIDED.mig_devices}
    gpus = [replace(gpu, mig_enabled=divided and gpu.uuid in parents) for gpu in gpus]
    return replace(DIVIDED, gpus=tuple(gpus), mig_devices=DIVIDED.mig_devices if divided else ())


def claims_at_random(rng: random.Random) -> list[ResourceClaim]:
    gpus = [gpu_device_name(gpu.uuid) for gpu in DIVIDED.gpus]
    made = []
    for number in range(14):
        count = rng.choice([1, 1, 2])
        kind = rng.choice(["whole", "share", "share", "share", "part"])
        results: list[dict[str, Any]] = []
        for place in range(count):
            result: dict[str, Any] = {"request": f"r{place}", "driver": DRIVER, "pool": NODE}
            if kind == "part":
                result["device"] = rng.choice(DIVIDED.mig_devices).device_name
            else:
                result["device"] = gpus[place] if kind == "whole" and count == 2 else rng.choice(gpus)
            if kind == "share":
                memory, cores = rng.choice(["1Mi", "10Gi", "30Gi", "50Gi", "80Gi"]), rng.choice([0, 0, 30, 60, 100])
                result |= share_of(memory, cores, share_id=f"s{number}-{place}")
            results.append(result)
        if kind == "part" and len({result["device"] for result in results}) < count:
            results = results[:1]
        made.append(claim_of(f"c{number}", {"results": results, "config": [BEST_EFFORT]}))
    return made


def run_at_random(folder: Path, seed: int) -> int:
    """Prepare and unprepare in any order, with kills and a GPU that is divided now and then; return what was given."""
    rng = random.Random(seed)
    claims = {ClaimUid(claim.metadata.uid): claim for claim in claims_at_random(rng)}
    answered: set[ClaimUid] = set()
    given, divided = 0, True

    def started(step: int) -> PluginNode:
        read = machine(divided=divided)
        steps = KilledSteps(step)
        return PluginNode(
            folder, FakeClaims(*claims.values()), pool=node_pool(read, DRIVER, PoolName(NODE)), steps=steps
        )

    def held(node: PluginNode) -> set[ClaimUid]:
        return {p.claim.uid for p in node.node_claims.prepared()}

    for _ in range(8):
        node = started(rng.randint(1, 80))
        with suppress(StopError):
            for _ in range(15):
                uid = rng.choice(sorted(claims))
                claim = claims[uid]
                if rng.random() < 0.4:
                    answered.discard(uid)
                    with suppress(DracaenaError):
                        node.state.unprepare(reference_to(claim))
                    continue
                others = [claims[other] for other in held(node) - {uid}]
                try:
                    node.state.prepare(reference_to(claim))
                except DracaenaError as error:
                    refused = str(error)
                else:
                    refused = ""
                    given += 1
                    answered.add(uid)
                fits = is_legal([claim, *others])
                assert fits or refused, f"seed {seed}: {uid} was let in beside {held(node) - {uid}}"
                # The other GPU may be divided, or not, or its parts may be held from before it was.
                one_gpu = all(use[0] == gpu_device_name(DIVIDED.gpus[0].uuid) for use in uses(claim))
                assert not (fits and one_gpu and refused), f"seed {seed}: {uid} fits and was refused: {refused}"
        node = started(0)
        assert answered <= held(node), f"seed {seed}: {answered - held(node)} were answered and are forgotten"
        node.recovery.recover(())
        assert is_legal(claims[uid] for uid in held(node)), f"seed {seed}: {held(node)}"
        divided = divided != (rng.random() < 0.3)
    node = started(0)
    for claim in claims.values():
        node.state.unprepare(reference_to(claim))
    assert not [name for name in node.files() if name.startswith(("claims/c", "cdi/g"))]
    return given


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(5), range(5, 60), range(60, 400)))
def test_nothing_is_ever_overdrawn_and_nothing_refused_that_fits(tmp_path: Path, seeds: range) -> None:
    given = sum(run_at_random(tmp_path / str(seed), seed) for seed in seeds)
    assert given > 12 * len(seeds)


Plant = Callable[[pytest.MonkeyPatch], None]


def no_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(last_guard, "overdrawn", lambda *_: ())
    patch.setattr(plan, "overdrawn", lambda *_: ())


def own_shares_uncounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "overdrawn", lambda *_: ())
    count = overdrawn

    def one_by_one(wanted: Any, others: Any, pool: Any) -> Any:
        found = [count(replace(wanted, devices=(device,)), others, pool) for device in wanted.devices]
        return tuple(each for several in found for each in several)

    patch.setattr(last_guard, "overdrawn", one_by_one)


def whole_beside_share(patch: pytest.MonkeyPatch) -> None:
    def goes_with(self: PreparedDevice, other: PreparedDevice) -> bool:
        return self.share_id is not None or other.share_id is not None

    patch.setattr(PreparedDevice, "goes_with", goes_with)


def shares_hold_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreparedDevice, "goes_with", lambda self, other: False)


@pytest.mark.parametrize("plant", [no_sums, own_shares_uncounted, whole_beside_share, shares_hold_each_other])
def test_planted_faults_are_found(tmp_path: Path, plant: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            _run_all(tmp_path)


def _run_all(folder: Path) -> None:
    for seed in range(20):
        run_at_random(folder / str(seed), seed)


def test_a_whole_claim_is_refused_beside_a_share_and_the_other_way_round(tmp_path: Path) -> None:
    for number, pair in enumerate([(make_claim("a"), make_share("b")), (make_share("a"), make_claim("b"))]):
        node = PluginNode(tmp_path / str(number), FakeClaims(*pair))
        node.state.prepare(reference_to(pair[0]))
        with pytest.raises(DeviceHeldError, match="is still held by"):
            node.state.prepare(reference_to(pair[1]))


def test_nothing_of_a_gpu_is_given_away_while_it_is_being_divided_anew(tmp_path: Path) -> None:
    held, other, new = make_claim("held", (0,)), make_claim("other", (1,)), make_claim("new", (2,))
    node = PluginNode(tmp_path, FakeClaims(held, other, new))
    node.state.prepare(reference_to(held))
    node.changing |= {device_name(0), device_name(2)}
    node.state.prepare(reference_to(held))  # what is prepared is answered as before
    node.state.prepare(reference_to(other))
    with pytest.raises(TemporaryError, match="is being divided into another layout"):
        node.state.prepare(reference_to(new))
    node.changing.clear()
    node.state.prepare(reference_to(new))


def test_nothing_of_the_node_is_given_away_while_something_is_against_it(tmp_path: Path) -> None:
    held, new = make_claim("held", (0,)), make_claim("new", (1,))
    node = PluginNode(tmp_path, FakeClaims(held, new))
    node.state.prepare(reference_to(held))
    node.refusal = "the mode of the GPUs is being changed"
    node.state.prepare(reference_to(held))  # what is prepared is answered as before
    with pytest.raises(TemporaryError, match="the mode of the GPUs is being changed"):
        node.state.prepare(reference_to(new))
    node.refusal = None
    node.state.prepare(reference_to(new))
