from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.names import DeviceName
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.changes.change import Act, thing_of
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.effects import Effect
from support.effects import FOLDER, SERVED, ServerFiles, served
from support.killed_steps import KilledSteps, StopError
from support.plugin import FakeClaims, PluginNode, ThreadLock, device_name, make_claim, make_share, reference_to

CLAIM = make_claim(devices=(0, 1))
REFERENCE = reference_to(CLAIM)
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"


class Watching(ServerFiles):
    """Looks at the journal, from within and without the lock of the calls, each time that something is done."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FileSteps())
        self.node: PluginNode | None = None
        self.seen: list[tuple[str, str]] = []

    def apply(self, act: Act[frozenset[str]]) -> None:
        self._note("apply", act)
        super().apply(act)

    def undo(self, act: Act[frozenset[str]]) -> None:
        self._note("undo", act)
        super().undo(act)

    def _note(self, what: str, act: Act[frozenset[str]]) -> None:
        assert self.node is not None
        self.node.recovery.drop_stray_metadata()  # takes the lock, which says so where this thread holds it
        assert any(thing_of(effect) == act.thing for effect in journal(self.node))
        assert self.node.engine.is_owner(act.thing, REFERENCE.uid)
        self.seen.append((what, act.thing.name))


def node_with(folder: Path, means: ServerFiles, claims: FakeClaims | None = None) -> PluginNode:
    return PluginNode(folder, claims or FakeClaims(CLAIM), kind_of=served, kinds=[means])


def journal(node: PluginNode) -> tuple[Effect, ...]:
    return tuple(e for c in node.node_claims.current() for e in c.prepared.wants)


def servers(node: PluginNode) -> set[str]:
    return {name.partition("/")[2] for name in node.files() if name.startswith(f"{FOLDER}/")}


def test_effects_are_journaled_before_they_are_made_and_until_they_are_undone_without_the_lock_of_the_calls(
    tmp_path: Path,
) -> None:
    means = Watching(tmp_path)
    node = means.node = node_with(tmp_path, means)
    prepared = node.state.prepare(REFERENCE)
    gpus = [device_name(0), device_name(1)]
    assert means.seen == [("apply", gpu) for gpu in gpus]
    assert node.state.prepare(REFERENCE) == prepared
    node.state.unprepare(REFERENCE)
    assert means.seen[2:] == [("undo", gpu) for gpu in reversed(gpus)]
    assert servers(node) == set()
    assert node.node_claims.of(REFERENCE.uid) is None


def test_containers_get_what_an_effect_told_also_after_a_restart_without_the_spec(tmp_path: Path) -> None:
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()))
    node.state.prepare(REFERENCE)
    spec = node.files()[SPEC]
    assert f"SERVER=of-{device_name(1)}".encode() in spec
    assert b'"containerPath": "/run/in"' in spec
    (tmp_path / SPEC).unlink()
    again = node_with(tmp_path, ServerFiles(tmp_path, FileSteps(), fails=("apply",)))
    again.state.prepare(REFERENCE)
    assert again.files()[SPEC] == spec


def test_a_claim_whose_effect_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    means = ServerFiles(tmp_path, FileSteps(), fails=("apply",))
    node = node_with(tmp_path, means)
    with pytest.raises(TemporaryError, match="does not start"):
        node.state.prepare(REFERENCE)
    assert node.node_claims.of(REFERENCE.uid) is None
    means.fails = ()
    node.state.prepare(REFERENCE)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"broken"), Path.unlink], ids=["broken", "lost"])
def test_a_claim_whose_checkpoint_is_rebuilt_keeps_its_spec_until_its_effects_are_made_again(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    node_with(tmp_path, ServerFiles(tmp_path, FileSteps())).state.prepare(REFERENCE)
    damage(tmp_path / "claims" / f"{REFERENCE.uid}.json")
    means = ServerFiles(tmp_path, FileSteps(), fails=("apply",))
    node = node_with(tmp_path, means)
    spec, serving = node.files()[SPEC], servers(node)
    for _ in range(2):
        with pytest.raises(TemporaryError, match="does not start"):
            node.state.prepare(REFERENCE)
        node.recovery.follow_devices()
        assert (node.files()[SPEC], servers(node)) == (spec, serving)
    means.fails = ()
    node.recovery.follow_devices()
    assert node.files()[SPEC] == spec
    assert node.node_claims.prepared()[0] == node.state.prepare(REFERENCE)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"broken"), Path.unlink], ids=["broken", "lost"])
def test_a_claim_that_is_rebuilt_keeps_what_it_has_although_it_would_be_given_less_now(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """The settings changed while the plugin was away; its containers run."""
    node_with(tmp_path, ServerFiles(tmp_path, FileSteps())).state.prepare(REFERENCE)
    damage(tmp_path / "claims" / f"{REFERENCE.uid}.json")
    node = PluginNode(
        tmp_path,
        FakeClaims(CLAIM),
        kind_of=lambda name, share: served(name, share) if name == device_name(0) else kind_of(name, share),
        kinds=[ServerFiles(tmp_path, FileSteps())],
    )
    serving = servers(node)
    node.state.prepare(REFERENCE)
    assert node.engine.sweep(SERVED) == 0
    assert servers(node) == serving
    node.state.unprepare(REFERENCE)
    assert servers(node) == set()


def test_an_effect_that_cannot_be_undone_stays_journaled_and_holds_its_device(tmp_path: Path) -> None:
    means = ServerFiles(tmp_path, FileSteps(), fails=("undo",))
    other = make_claim("other", devices=(1,))
    node = node_with(tmp_path, means, FakeClaims(CLAIM, other))
    node.state.prepare(REFERENCE)
    with pytest.raises(TemporaryError, match="does not stop"):
        node.state.unprepare(REFERENCE)
    assert len(journal(node)) == 2
    assert SPEC not in node.files()
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(other))
    means.fails = ()
    node.state.unprepare(REFERENCE)
    node.state.prepare(reference_to(other))
    assert len(servers(node)) == 2


@pytest.mark.parametrize("spec_is_there", [True, False])
def test_a_server_that_a_claim_with_a_broken_checkpoint_may_use_stays(tmp_path: Path, spec_is_there: bool) -> None:
    shares = [make_share("broken"), make_share("good"), make_share("elsewhere", gpu=1)]
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), FakeClaims(*shares))
    broken, good, elsewhere = map(reference_to, shares)
    for reference in (broken, good, elsewhere):
        node.state.prepare(reference)
    (tmp_path / "claims" / "broken-uid.json").write_bytes(b"broken")
    if not spec_is_there:
        (tmp_path / "cdi" / "gpu.dracaena.dev-claim_broken-uid.json").unlink()
    node.node_claims.look_at_each()
    if spec_is_there:
        node.state.unprepare(elsewhere)
        assert device_name(1) not in servers(node)
    node.state.unprepare(good)
    assert device_name(0) in servers(node)
    node.state.unprepare(broken)  # its pod ended
    assert device_name(0) not in servers(node)


def test_a_broken_checkpoint_that_was_rebuilt_holds_nobody_up(tmp_path: Path) -> None:
    shares = [make_share("broken"), make_share("good")]
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), FakeClaims(*shares))
    broken, good = map(reference_to, shares)
    node.state.prepare(broken)
    node.state.prepare(good)
    (tmp_path / "claims" / "broken-uid.json").write_bytes(b"broken")
    node.state.prepare(broken)
    node.state.unprepare(good)
    assert device_name(0) in servers(node)
    node.state.unprepare(broken)
    assert servers(node) == set()


def test_an_effect_of_a_kind_that_nobody_knows_here_is_neither_forgotten_nor_guessed(tmp_path: Path) -> None:
    node_with(tmp_path, ServerFiles(tmp_path, FileSteps())).state.prepare(REFERENCE)
    older = PluginNode(tmp_path, FakeClaims(CLAIM))
    with pytest.raises(TemporaryError, match="do not support 'served'"):
        older.state.unprepare(REFERENCE)
    assert len(journal(older)) == 2


def test_no_effect_of_an_earlier_boot_is_undone(tmp_path: Path) -> None:
    node_with(tmp_path, ServerFiles(tmp_path, FileSteps())).state.prepare(REFERENCE)
    means = ServerFiles(tmp_path, FileSteps(), fails=("undo",))
    node = PluginNode(tmp_path, FakeClaims(CLAIM), boot_id="boot-2", kind_of=served, kinds=[means])
    node.state.unprepare(REFERENCE)
    assert node.node_claims.of(REFERENCE.uid) is None


def test_gpus_are_locked_in_one_order_whatever_the_order_of_a_claims_devices(tmp_path: Path) -> None:
    """Or two claims of the same GPUs would wait for each other."""
    claim = make_claim(devices=(5, 2, 6, 0, 3, 1, 4))
    locked: list[DeviceName] = []
    means = ServerFiles(tmp_path, FileSteps())
    node = node_with(tmp_path, means, FakeClaims(claim))

    def gpu_lock(gpu: DeviceName) -> ThreadLock:
        locked.append(gpu)
        return ThreadLock()

    effects = ClaimChanges(
        claims=node.node_claims,
        engine=node.engine,
        gpu_lock=gpu_lock,
    )
    node.state.prepare(reference_to(claim))
    with effects.hold(reference_to(claim).uid, lambda: 0.0):
        assert locked == sorted(device_name(number) for number in range(7))


def killed_in_prepare(folder: Path, step: int, port: int = 1) -> bool:
    steps = KilledSteps(step)
    means = ServerFiles(folder, steps)
    node = PluginNode(
        folder,
        FakeClaims(CLAIM),
        steps=steps,
        kind_of=lambda name, share: served(name, share, port=port),
        kinds=[means],
    )
    try:
        node.state.prepare(REFERENCE)
    except StopError:
        return True
    return False


def test_what_an_earlier_plan_began_is_undone_where_the_next_one_is_another(tmp_path: Path) -> None:
    """The settings changed while the plugin was away: now the server listens elsewhere."""
    step = 1
    while killed_in_prepare(tmp_path / str(step), step):
        folder = tmp_path / str(step)
        node = PluginNode(
            folder,
            FakeClaims(CLAIM),
            kind_of=lambda name, share: served(name, share, port=2),
            kinds=[ServerFiles(folder, FileSteps())],
        )
        prepared = node.state.prepare(REFERENCE)
        assert {effect.parameters["port"] for effect in prepared.wants} in ({1}, {2}), step
        names = {d.device for d in prepared.devices}
        (port,) = {effect.parameters["port"] for effect in prepared.wants}
        left = {name for name in servers(node) if not name.startswith(".")}
        assert left == names | {f"{name}+None+{port}" for name in names}, step
        step += 1
    assert step > 15


class Held(ServerFiles):
    """Starts no server of GPU 0 before it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FileSteps())
        self.began, self.go = threading.Event(), threading.Event()

    def apply(self, act: Act[frozenset[str]]) -> None:
        if act.thing.name == device_name(0):
            self.began.set()
            assert self.go.wait(10)
        super().apply(act)


def test_while_an_effect_is_being_made_claims_of_other_gpus_go_on_and_an_unprepare_waits(tmp_path: Path) -> None:
    means = Held(tmp_path)
    slow, other = make_claim("slow", devices=(0,)), make_claim("other", devices=(1,))
    node = node_with(tmp_path, means, FakeClaims(slow, other))
    ended: list[str] = []

    def call(name: str, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            work()
            ended.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [call("prepare", lambda: node.state.prepare(reference_to(slow)))]
    assert means.began.wait(10)
    threads.append(call("unprepare", lambda: node.state.unprepare(reference_to(slow))))
    node.state.prepare(reference_to(other))
    assert ended == []
    means.go.set()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == ["prepare", "unprepare"]
    assert servers(node) == {device_name(1), f"{device_name(1)}+None+1"}
