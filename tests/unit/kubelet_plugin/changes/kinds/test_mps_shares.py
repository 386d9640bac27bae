from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dracaena.api import mps
from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.mps import MpsMount, MpsNodeStatus, MpsPhase, MpsShareStatus
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.changes.change import Act, Note, Thing, Wants
from dracaena.kubelet_plugin.changes.kinds.mps_shares import PATIENCE_S, MpsShares
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.mps_effect import NotedShare
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.cdi.spec import Edits
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, part_on_gpu
from support.clock import FakeClock
from support.mps_node import BOOT, MpsNode
from support.plugin import (
    BEST_EFFORT,
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

GPU = gpu_uuid(0)
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"


class Between(FakeClock):
    """Lets something happen in each pause."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        self.happens()
        return False


def shares(
    root: Path,
    happens: Callable[[], object] = lambda: None,
    *,
    runs: bool = True,
    boot: str = BOOT,
    steps: FileSteps | None = None,
) -> MpsShares:
    return MpsShares(
        root=str(root),
        requests=DocumentFolder(root / mps.REQUESTS, steps=steps, synced=False),
        statuses=DocumentFolder(root / mps.STATUS, synced=False),
        node=DocumentFolder(root, synced=False),
        is_running=lambda: runs,
        boot_id=boot,
        clock=Between(happens),
    )


SHARE = mps.share_name(GPU, "claim", "share")
THING = Thing(MPS_SHARE, part_on_gpu(gpu_device_name(GPU), SHARE))
WANTS: Wants = {
    "claim": ({"gpu": GPU, "share_id": "share", "thread_percentage": 30, "pinned_memory_mib": 1024},),
}
FILE = SHARE + mps.SUFFIX


def done(kind: MpsShares, wants: Wants, note: Note[NotedShare] | None = None) -> NotedShare | None:
    """Bring the share to what is wanted of it, and return what is noted then."""
    plan = kind.plan(wants, kind.look(THING, wants), note)
    if plan.act is None:
        return plan.noted
    (end,) = kind.do([Act(THING, plan.act, (), print)], lambda: 1.0)
    if end.problem is not None:
        raise end.problem
    return end.left


def asked_for(kind: MpsShares) -> Edits:
    noted = done(kind, WANTS)
    assert noted is not None
    return noted.edits


def status(root: Path, phase: MpsPhase, message: str = "", **fields: object) -> bytes:
    request = (root / mps.REQUESTS / FILE).read_bytes()
    known = {"request": mps.digest(request), "phase": phase, "message": message, "gpu": GPU, **fields}
    return mps.encode(MpsShareStatus(**known))  # type: ignore[arg-type]


def answers(root: Path, data: Callable[[], bytes]) -> Callable[[], None]:
    def answer() -> None:
        (root / mps.STATUS).mkdir(exist_ok=True)
        (root / mps.STATUS / FILE).write_bytes(data())

    return answer


# with the real supervisor, over a fake driver


@pytest.fixture(params=[2, 3])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> MpsNode:
    return MpsNode(tmp_path / "mps", request.param, gpus=tuple(gpu_uuid(n) for n in range(3)))


def root_of(node: MpsNode) -> Path:
    return Path(node.places.root)


def test_a_share_is_what_its_containers_need_and_leaves_nothing_of_itself(node: MpsNode) -> None:
    kind = shares(root_of(node), node.settle)
    edits = asked_for(kind)
    environment = dict(each.split("=", 1) for each in edits.env)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    pipes, *others = edits.mounts
    assert (pipes.container_path, pipes.options[0]) == ("/tmp/nvidia-mps", "ro")
    assert pipes.host_path.startswith(node.places.pipes)
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{GPU}=1024M"}
    has_shm = ("/dev/shm", "rw") in [(each.container_path, each.options[0]) for each in others]
    assert {name: environment.get(name) for name in limits} == (limits if has_shm else dict.fromkeys(limits))
    assert asked_for(kind) == edits
    note = Note(BOOT, {}, NotedShare(edits))
    assert done(kind, {}, note) is None
    node.settle()
    assert [left for left in node.left() if not left.startswith(("log", "pipe/control"))] == []
    assert done(kind, {}, note) is None


def share_claim(
    name: str = "claim", gpu: int = 0, memory: str = "10Gi", *, cores: int = 30, strategy: str = "MPS", **config: str
) -> ResourceClaim:
    return claim_of(
        name,
        {
            "results": [_result("gpus", gpu, memory, cores, f"share-of-{name}")],
            "config": [sharing_config(strategy=strategy, **config)],
        },
        reserved_for={"pod": "pod-uid"},
    )


def _result(request: str, gpu: int, memory: str, cores: int, share_id: str) -> dict[str, object]:
    result = {"request": request, "driver": DRIVER, "pool": NODE, "device": device_name(gpu)}
    return {**result, **share_of(memory, cores, share_id=share_id)}


def plugin(
    folder: Path, means: MpsShares, *claims: ResourceClaim, steps: FileSteps | None = None, pods: FakePods | None = None
) -> PluginNode:
    parts = {} if pods is None else {"pods": pods}
    return PluginNode(
        folder / "plugin",
        FakeClaims(*claims),
        boot_id=BOOT,
        steps=steps or FileSteps(),
        kind_of=kinds_on(lambda: NodeEnforcement(mps=means.offer())),
        kinds=[means],
        **parts,  # type: ignore[arg-type]
    )


def asked(node: MpsNode) -> list[str]:
    return [path.name for path in (root_of(node) / mps.REQUESTS).iterdir() if not path.name.startswith(".")]


def test_a_claim_is_prepared_with_the_way_to_its_server_and_unprepared_without_a_trace(
    node: MpsNode, tmp_path: Path
) -> None:
    node.settle()
    claim = share_claim()
    held = plugin(tmp_path, shares(root_of(node), node.settle), claim)
    prepared = held.state.prepare(reference_to(claim))
    (effect,) = prepared.wants
    assert effect.parameters == {
        "gpu": GPU, "share_id": "share-of-claim", "thread_percentage": 30, "pinned_memory_mib": 10240,
    }  # fmt: skip
    spec = held.files()[SPEC].decode()
    assert '"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"' in spec
    assert f'"hostPath": "{node.places.pipes}' in spec
    held.state.unprepare(reference_to(claim))
    node.settle()
    assert asked(node) == []
    assert node.statuses() == {}
    assert SPEC not in held.files()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"{"), Path.unlink], ids=["broken", "lost"])
def test_two_claims_of_one_server_whose_checkpoints_are_gone_are_both_served_again(
    node: MpsNode, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """Neither is kept from it by the other, of which nobody knows how it shares its GPU."""
    node.settle()
    claims = [share_claim("one"), share_claim("two")]
    pods = FakePods(make_pod(claims={"one": "one", "two": "two"}))
    held = plugin(tmp_path, shares(root_of(node), node.settle), *claims, pods=pods)
    for claim in claims:
        held.state.prepare(reference_to(claim))
    before, served = held.files(), sorted(asked(node))
    for claim in claims:
        damage(held.folder / "claims" / f"{reference_to(claim).uid}.json")
    held.recovery.recover(pods.values())
    for _ in range(2):
        held.sweeper.sweep()
        held.recovery.follow_devices()
    assert {name: data for name, data in held.files().items() if not name.endswith(".broken")} == before
    assert sorted(asked(node)) == served
    for claim in claims:
        held.state.unprepare(reference_to(claim))
    node.settle()
    assert asked(node) == []


def test_a_supervisor_that_is_away_is_waited_for_and_the_next_call_goes_on(node: MpsNode, tmp_path: Path) -> None:
    node.settle()
    claim = share_claim()
    away = plugin(tmp_path, shares(root_of(node), runs=False), claim)
    with pytest.raises(EffectPendingError, match="no MPS supervisor runs on this node"):
        away.state.prepare(reference_to(claim))
    assert len(asked(node)) == 1
    node.start()
    node.settle()
    back = plugin(tmp_path, shares(root_of(node)), claim)
    back.state.prepare(reference_to(claim))
    node.settle()
    gone = plugin(tmp_path, shares(root_of(node), runs=False), claim)
    with pytest.raises(TemporaryError, match="no MPS supervisor runs on this node"):
        gone.state.unprepare(reference_to(claim))
    assert SPEC not in gone.files()
    node.settle()
    gone.state.unprepare(reference_to(claim))
    assert gone.node_claims.of(reference_to(claim).uid) is None


@pytest.mark.parametrize("node", [3], indirect=True)
def test_best_effort_has_mps_where_it_runs_and_goes_without_where_not(node: MpsNode, tmp_path: Path) -> None:
    node.settle()
    claim = share_claim(enforcement="BestEffort")
    for runs in (True, False):
        held = plugin(tmp_path / str(runs), shares(root_of(node), node.settle, runs=runs), claim)
        assert bool(held.state.prepare(reference_to(claim)).wants) is runs


@pytest.mark.parametrize("node", [3], indirect=True)
def test_a_gpu_has_shares_by_mps_or_without_it_never_both(node: MpsNode, tmp_path: Path) -> None:
    node.settle()
    by_mps = share_claim()
    plain = claim_of("plain", {"results": [_result("gpus", 0, "1Gi", 0, "plain")], "config": [BEST_EFFORT]})
    held = plugin(tmp_path, shares(root_of(node), node.settle), by_mps, plain)
    for first, second in ((by_mps, plain), (plain, by_mps)):
        held.state.prepare(reference_to(first))
        with pytest.raises(DeviceHeldError, match="one of the two uses MPS and the other does not"):
            held.state.prepare(reference_to(second))
        held.state.unprepare(reference_to(first))


@pytest.mark.parametrize("node", [3], indirect=True)
@pytest.mark.parametrize("one_container", [True, False])
def test_one_container_has_one_share_by_mps(node: MpsNode, tmp_path: Path, one_container: bool) -> None:
    node.settle()
    first, second = share_claim("first"), share_claim("second", gpu=1)
    uses = {"main": [("a", "")], "side": [("b", "")]} if not one_container else {"main": [("a", ""), ("b", "")]}
    pods = FakePods(make_pod(containers=uses, claims={"a": "first", "b": "second"}))
    held = plugin(tmp_path, shares(root_of(node), node.settle), first, second, pods=pods)
    held.state.prepare(reference_to(first))
    if not one_container:
        held.state.prepare(reference_to(second))
        return
    with pytest.raises(PrepareError, match="container main of pod default/pod would have 2 shares by MPS"):
        held.state.prepare(reference_to(second))
    assert len(asked(node)) == 1


# with a script in place of the supervisor


def test_a_refusal_comes_out_in_the_supervisors_words(tmp_path: Path) -> None:
    said = answers(tmp_path, lambda: status(tmp_path, MpsPhase.REFUSED, "another user has this GPU"))
    with pytest.raises(PermanentError, match=r"refuses the share of GPU-.*another user has this GPU"):
        asked_for(shares(tmp_path, said))


ELSEWHERE = (MpsMount(host_path="/elsewhere", container_path="/tmp/nvidia-mps"),)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "the MPS supervisor has not answered"),
        (lambda root: b"\x80 rubbish", "its status cannot be read: "),
        (lambda root: b"{}", "its status cannot be read: "),
        (lambda root: status(root, MpsPhase.READY, request="0" * 16), "the MPS supervisor has not answered"),
        (lambda root: status(root, MpsPhase.PENDING, "its server starts"), "Pending, its server starts"),
        (lambda root: status(root, MpsPhase.FAILED, "the daemon died"), "Failed, the daemon died"),
        (lambda root: status(root, MpsPhase.READY), "names no folder for its containers"),
        (
            lambda root: status(root, MpsPhase.READY, mounts=ELSEWHERE),
            "containers mount '/elsewhere', expected a folder below",
        ),
    ],
)
def test_what_is_not_ready_is_asked_for_again_and_the_request_stands(
    tmp_path: Path, data: Callable[[Path], bytes] | None, words: str
) -> None:
    script = (lambda: None) if data is None else answers(tmp_path, lambda: data(tmp_path))
    means = shares(tmp_path, script)
    with pytest.raises(EffectPendingError) as told:
        asked_for(means)
    assert words in str(told.value)
    request = (tmp_path / mps.REQUESTS / FILE).read_bytes()
    assert mps.decode_request(request).boot_id == BOOT
    mounts = (MpsMount(host_path=f"{tmp_path}/pipe/x", container_path="/tmp/nvidia-mps"),)
    ready = answers(tmp_path, lambda: status(tmp_path, MpsPhase.READY, mounts=mounts))
    (mount,) = asked_for(shares(tmp_path, ready)).mounts
    assert (mount.host_path, mount.container_path, mount.options[0]) == (f"{tmp_path}/pipe/x", "/tmp/nvidia-mps", "rw")
    assert (tmp_path / mps.REQUESTS / FILE).read_bytes() == request


def test_a_silent_supervisor_takes_no_longer_than_said(tmp_path: Path) -> None:
    waited: list[None] = []
    with pytest.raises(EffectPendingError):
        asked_for(shares(tmp_path, lambda: waited.append(None)))
    assert PATIENCE_S * 9 < len(waited) <= PATIENCE_S * 10 + 1


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({}, None),
        ({"boot_id": "another"}, "no MPS supervisor has run in"),
        ({"protocol": 0, "message": "too old"}, "serves no MPS: too old"),
        ({"multi_user": False}, "one user at a time"),
        (None, "no MPS supervisor has run in"),
        (b"rubbish", "cannot be read"),
    ],
)
def test_what_the_supervisor_says_of_the_node_decides_whether_shares_are_asked_for(
    tmp_path: Path, said: Mapping[str, object] | bytes | None, problem: str | None
) -> None:
    if isinstance(said, bytes):
        (tmp_path / mps.NODE_STATUS).write_bytes(said)
    elif said is not None:
        known = {"boot_id": BOOT, "protocol": 3, "message": "", "multi_user": True, **said}
        (tmp_path / mps.NODE_STATUS).write_bytes(mps.encode(MpsNodeStatus(**known)))  # type: ignore[arg-type]
    means = shares(tmp_path)
    assert (means.offer().problem or "").find(problem or "") >= 0
    assert (means.offer().problem is None) is (problem is None)
    if problem is not None:
        claim = share_claim()
        with pytest.raises(PrepareError, match=f"requires sharing strategy MPS for {device_name(0)}: .*{problem}"):
            plugin(tmp_path, means, claim).state.prepare(reference_to(claim))


@pytest.mark.parametrize("node", [3], indirect=True)
def test_a_start_does_not_wait_for_shares_that_are_pending_nor_fail_by_those_that_cannot_be_taken_back(
    node: MpsNode, tmp_path: Path
) -> None:
    node.settle()
    claim = share_claim()
    away = plugin(tmp_path, shares(root_of(node), runs=False), claim)
    with pytest.raises(EffectPendingError):
        away.state.prepare(reference_to(claim))
    assert plugin(tmp_path, shares(root_of(node), runs=False), claim).recovery.recover(()) is True
    assert len(asked(node)) == 1
    node.settle()
    assert plugin(tmp_path, shares(root_of(node), runs=False)).recovery.recover(()) is False, "the claim is gone"
    assert asked(node) == []
    assert plugin(tmp_path, shares(root_of(node), node.settle)).recovery.recover(()) is True
    assert node.statuses() == {}
