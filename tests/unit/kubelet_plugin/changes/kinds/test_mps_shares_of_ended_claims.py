from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dracaena.api import mps
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes.kinds.mps_shares import MpsShares
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.mps_effect import NO_MPS, MpsOffer
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE
from dracaena.mps.planning.state import ComputeMode
from support.clock import FakeClock
from support.mps_node import BOOT, MpsNode
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    make_pod,
    reference_to,
    share_of,
    sharing_config,
)


class SettlingClock(FakeClock):
    """The supervisor works in each pause of the plugin."""

    def __init__(self, mps_node: MpsNode) -> None:
        super().__init__()
        self._mps_node = mps_node

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        del event
        self.advance(timeout_s)
        self._mps_node.settle()
        return False


def share_claim(name: str, **sharing: str) -> ResourceClaim:
    share = share_of("10Gi", 30, share_id=f"share-of-{name}")
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(0), **share}
    config = [sharing_config(strategy="MPS", **sharing)]
    return claim_of(name, {"results": [result], "config": config}, reserved_for={f"pod-{name}": f"pod-{name}-uid"})


class Ground:
    """Two claims with shares of one GPU by the real supervisor. start() is a restart of the plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mps = MpsNode(folder / "mps", gpus=(gpu_uuid(0),))
        self.mps.settle()
        self.one, self.two = share_claim("one"), share_claim("two")
        self.claims = FakeClaims(self.one, self.two)
        self.pods = FakePods(*(make_pod(f"pod-{name}", claims={"claim": name}) for name in ("one", "two")))
        self.start()

    def start(self, offer: MpsOffer | None = None) -> None:
        root = Path(self.mps.places.root)
        requests = DocumentFolder(root / mps.REQUESTS, synced=False)
        means = MpsShares(
            root=str(root),
            requests=requests,
            statuses=DocumentFolder(root / mps.STATUS, synced=False),
            node=DocumentFolder(root, synced=False),
            is_running=lambda: True,
            boot_id=BOOT,
            clock=SettlingClock(self.mps),
        )
        self.node = PluginNode(
            self.folder / "plugin",
            self.claims,
            self.pods,
            boot_id=BOOT,
            kind_of=kinds_on(lambda: NodeEnforcement(mps=offer or means.offer())),
            kinds=[means],
        )

    def sweep(self) -> int:
        return self.node.engine.sweep(MPS_SHARE, self.node._told_of)

    def checkpoint(self, name: str) -> Path:
        return self.folder / "plugin" / "claims" / f"{name}-uid.json"

    def shares(self) -> list[str]:
        """Return the claims whose shares the supervisor serves."""
        self.mps.settle()
        return sorted(status.claim_uid.removesuffix("-uid") for status in self.mps.statuses().values())


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path)
    for claim in (ground.one, ground.two):
        ground.node.state.prepare(reference_to(claim))
    assert ground.shares() == ["one", "two"]
    return ground


def test_a_share_whose_claim_ended_with_a_broken_checkpoint_is_withdrawn_and_others_stay(ground: Ground) -> None:
    ground.checkpoint("one").write_bytes(b"rubbish")
    ground.start()
    assert ground.sweep() == 0, "its containers may run"
    ground.node.state.unprepare(reference_to(ground.one))
    assert ground.shares() == ["two"]
    assert ground.sweep() == 0
    ground.node.state.unprepare(reference_to(ground.two))
    assert ground.shares() == []
    assert ground.mps.world.modes[gpu_uuid(0)] is ComputeMode.DEFAULT, "the GPU can be had whole again"


def test_a_share_of_a_claim_that_is_lost_with_all_but_its_note_is_withdrawn(ground: Ground) -> None:
    ground.checkpoint("one").unlink()
    (ground.folder / "plugin" / "cdi" / f"{DRIVER}-claim_one-uid.json").unlink()
    ground.start()
    assert ground.sweep() == 1
    assert ground.shares() == ["two"]


def test_a_share_whose_note_is_broken_stays_and_admins_are_told_how_to_withdraw_it(ground: Ground) -> None:
    for path in (ground.folder / "plugin" / "ledger").glob(f"{MPS_SHARE}.*.json"):
        path.write_bytes(b"torn")
    for name in ("one", "two"):
        ground.checkpoint(name).unlink()
        (ground.folder / "plugin" / "cdi" / f"{DRIVER}-claim_{name}-uid.json").unlink()
    ground.start()
    assert ground.sweep() == 0
    assert ground.shares() == ["one", "two"]
    assert all("`requests` of the MPS supervisor" in each.text for each in ground.node.troubles)
    assert not any("compute-policy" in each.advice for each in ground.node.troubles), "it shows no share"
    assert len(ground.node.troubles) == 2


@pytest.mark.parametrize("data", [None, b"torn"], ids=["lost", "broken"])
def test_a_claim_that_was_prepared_ends_without_its_share_although_its_note_is_gone(
    ground: Ground, data: bytes | None
) -> None:
    for path in (ground.folder / "plugin" / "ledger").glob(f"{MPS_SHARE}.*.json"):
        path.unlink() if data is None else path.write_bytes(data)
    ground.node.state.unprepare(reference_to(ground.one))
    assert ground.shares() == ["two"]


def test_a_share_whose_checkpoint_alone_was_lost_stays_for_its_containers(ground: Ground) -> None:
    ground.checkpoint("one").unlink()
    ground.start()
    assert ground.sweep() == 0
    ground.claims.unavailable = True
    ground.node.sweeper.sweep()
    assert ground.shares() == ["one", "two"], "the API does not say whose it is"
    ground.claims.unavailable = False
    ground.node.sweeper.sweep()
    assert ground.checkpoint("one").exists()
    assert ground.shares() == ["one", "two"]


def test_a_share_of_another_driver_stays_for_its_containers(ground: Ground) -> None:
    """Two drivers of one node may have one supervisor; each knows its own checkpoints alone."""
    requests = Path(ground.mps.places.root) / mps.REQUESTS
    mine = next(path for path in requests.iterdir() if mps.decode_request(path.read_bytes()).claim_uid == "one-uid")
    other = requests / f"s_0123456789abcdef{mps.SUFFIX}"
    other.write_bytes(mine.read_bytes().replace(b"one-uid", b"other-uid"))
    spec = ground.folder / "plugin" / "cdi" / "other.example.com-claim_other-uid.json"
    spec.write_text("{}")
    assert ground.sweep() == 0
    spec.unlink()
    assert ground.sweep() == 0, "who asked for it is not known here"
    assert other.exists()
    assert mine.exists()


def test_a_share_that_is_still_being_made_stays(ground: Ground) -> None:
    ground.node.node_claims.look_at_each()
    checkpoint = ground.node.node_claims.of(reference_to(ground.one).uid)
    ground.node.node_claims.begin_again(checkpoint)  # type: ignore[arg-type]
    ground.node.node_claims.remove_spec(reference_to(ground.one).uid)
    assert ground.sweep() == 0


@pytest.mark.parametrize("data", [b"", b"rubbish", b"{}", b"[" * 100_000])
def test_what_is_no_request_is_nobodys_and_stays(ground: Ground, data: bytes) -> None:
    path = Path(ground.mps.places.root) / mps.REQUESTS / f"s_0000000000000000{mps.SUFFIX}"
    path.write_bytes(data)
    assert ground.sweep() == 0
    assert path.exists()


def test_a_rebuilt_claim_that_could_do_without_mps_keeps_what_its_containers_have(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    claim = share_claim("three", enforcement="BestEffort")
    ground.claims.put(claim)
    ground.pods.add(make_pod("pod-three", claims={"claim": "three"}))
    ground.node.state.prepare(reference_to(claim))
    spec = ground.folder / "plugin" / "cdi" / f"{DRIVER}-claim_three-uid.json"
    before = spec.read_bytes()
    assert b"CUDA_MPS_PIPE_DIRECTORY" in before
    ground.checkpoint("three").write_bytes(b"torn")
    ground.start(NO_MPS)
    assert ground.node.recovery.recover(ground.pods.values())
    assert spec.read_bytes() == before
    ground.node.state.unprepare(reference_to(claim))
    assert ground.shares() == []
