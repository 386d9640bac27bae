"""The tmpfs of each GPU on real mounts: what holds it, what it holds, and what is left of it after a kill."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.mps import MpsNodeStatus
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.mps.adapters import share_memory as module
from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.mounts import MS_BIND, MS_REC, MS_SLAVE, mount, unmount
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.adapters.share_memory import ShareMemory
from dracaena.mps.adapters.shared_folder import SharedFolder
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.protocol import v2
from support.fake_mps import FakeMps
from support.mps_mounts import needs_mounts, share_memory, unmount_all
from support.mps_node import GPUS
from support.mps_world import Killed

pytestmark = needs_mounts

MS_SHARED = 1 << 20
SMALL = "size=8m,nr_inodes=1000"


@pytest.fixture
def places() -> Iterator[MpsPlaces]:
    """A folder on a small tmpfs, as /run is one, and mounted so that mounts below it reach others."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        mount("test", folder, "tmpfs", 0, SMALL)
        mount("none", folder, "", MS_SHARED)
        try:
            places = MpsPlaces(folder)
            yield places
            unmount_all(places)
        finally:
            unmount(folder)


def mounts(places: MpsPlaces, pid: str = "self") -> dict[str, str]:
    """Mounts of file systems of GPUs, as a process sees them: folder → options."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return {line[4]: f"{line[5]} {line[-1]}" for line in lines if line[-2] == "dracaena-mps" and line[4] != "/dev/shm"}


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_it_is_sized_and_holds_no_programs_and_no_devices(places: MpsPlaces) -> None:
    shm = share_memory(places)
    shm.prepare()
    shm.mount(GPUS[0])
    ((path, options),) = mounts(places).items()
    assert path == places.shm_of(GPUS[0])
    (Path(path) / "segment").touch()
    shm.mount(GPUS[0])
    assert names(path) == ["segment"], "nothing is mounted over what is in use"
    assert {"nosuid", "nodev", "noexec"} <= set(options.split()[0].split(","))
    assert "nr_inodes=262144" in options
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    said = os.statvfs(path)
    assert 0 < said.f_blocks * said.f_frsize <= memory / 2
    assert Path(path).stat().st_mode & 0o7777 == 0o1777
    assert Path(places.shm).stat().st_mode & 0o7777 == 0o755, "nobody makes files beside the mounts"


def test_a_full_one_stops_neither_another_gpus_nor_a_write_of_ours(
    places: MpsPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "shm_options", lambda *_: "size=1m,mode=1777")
    files, shm = SharedFolder(places), share_memory(places)
    files.prepare()
    shm.prepare()
    shm.mount(GPUS[0])
    shm.mount(GPUS[1])
    with pytest.raises(OSError, match="No space left"):
        (Path(places.shm_of(GPUS[0])) / "torch_1").write_bytes(b"x" * (2 << 20))
    files.write_node(MpsNodeStatus(boot_id="b", protocol=2, message="", multi_user=True, gpus=()))
    DocumentFolder(Path(places.root) / "cdi", synced=False).write("spec.json", b"{}" * 4000)
    (Path(places.shm_of(GPUS[1])) / "torch_1").write_bytes(b"x" * 65536)


def test_nothing_is_left_of_it_and_the_next_supervisor_finds_what_a_dead_one_left(places: MpsPlaces) -> None:
    shm = share_memory(places)
    shm.prepare()
    assert shm.seen() == {}
    for gpu in GPUS[:2]:
        shm.mount(gpu)
        (Path(places.shm_of(gpu)) / "segment").write_bytes(b"x")
    later = share_memory(places)
    later.prepare()
    assert later.seen() == dict.fromkeys(GPUS[:2], ShmState.MOUNTED)
    assert (Path(places.shm_of(GPUS[0])) / "segment").exists(), "running containers use it"
    for _ in range(2):
        for gpu in GPUS[:2]:
            later.unmount(gpu)
    assert (later.seen(), mounts(places), names(places.shm)) == ({}, {}, [])


def test_files_that_are_open_and_a_second_mount_keep_nothing(places: MpsPlaces) -> None:
    shm = share_memory(places)
    shm.prepare()
    shm.mount(GPUS[0])
    mount("dracaena-mps", places.shm_of(GPUS[0]), "tmpfs", 0, SMALL)
    with (Path(places.shm_of(GPUS[0])) / "segment").open("wb"):
        shm.unmount(GPUS[0])
    assert (shm.seen(), mounts(places)) == ({}, {})


def test_a_folder_without_a_mount_is_seen_as_one(places: MpsPlaces) -> None:
    shm = share_memory(places)
    shm.prepare()
    Path(places.shm_of(GPUS[0])).mkdir()
    assert shm.seen() == {GPUS[0]: ShmState.FOLDER}
    shm.mount(GPUS[0])
    assert shm.seen() == {GPUS[0]: ShmState.MOUNTED}
    unmount(places.shm_of(GPUS[0]))
    shm.unmount(GPUS[0])
    assert shm.seen() == {}


@pytest.mark.parametrize("call", ["mount", "unmount"])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_before_or_after_each_call_leaves_what_the_next_supervisor_completes(
    places: MpsPlaces, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    shm = share_memory(places)
    shm.prepare()
    if call == "unmount":
        shm.mount(GPUS[0])
    real: Callable[..., None] = getattr(module, call)

    def killed(*arguments: object) -> None:
        if after:
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, call, killed)
        with pytest.raises(Killed):
            getattr(shm, call)(GPUS[0])
    later = share_memory(places)
    later.prepare()
    assert later.seen() == {GPUS[0]: ShmState.MOUNTED if (call == "mount") is after else ShmState.FOLDER}
    later.mount(GPUS[0])
    assert len(mounts(places)) == 1
    later.unmount(GPUS[0])
    assert (later.seen(), mounts(places)) == ({}, {})


def test_the_segments_that_an_older_version_left_are_removed(places: MpsPlaces) -> None:
    folder = Path(places.shm)
    folder.mkdir(mode=0o1777)
    (folder / "torch_1").write_bytes(b"x")
    (folder / "sem.x").symlink_to("/etc/passwd")
    (folder / "d").mkdir()
    (folder / "d" / "file").touch()
    share_memory(places).prepare()
    assert list(folder.iterdir()) == []


def test_a_mount_that_the_host_does_not_see_is_undone_and_said(places: MpsPlaces, tmp_path: Path) -> None:
    (tmp_path / "1/root").mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\n")
    shm = ShareMemory(places, proc_root=str(tmp_path), at="/elsewhere")
    shm.prepare()
    with pytest.raises(PermanentError, match="needs mountPropagation: Bidirectional"):
        shm.mount(GPUS[0])
    assert (shm.seen(), mounts(places)) == ({}, {})


def test_a_mount_that_fails_says_where_and_why(places: MpsPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shm_options", lambda *_: "nonsense=1")
    shm = share_memory(places)
    shm.prepare()
    with pytest.raises(TemporaryError, match=rf"cannot mount a tmpfs at {places.shm_of(GPUS[0])}: Invalid argument"):
        shm.mount(GPUS[0])


def test_a_folder_in_dev_shm_is_refused() -> None:
    with pytest.raises(PermanentError, match="give another --root"):
        ShareMemory(MpsPlaces("/dev/shm/x")).mount(GPUS[0])


@pytest.mark.parametrize("shared", [True, False])
def test_a_daemon_has_the_tmpfs_of_its_gpu_and_keeps_no_others(places: MpsPlaces, tmp_path: Path, shared: bool) -> None:
    """Also where mounts of the supervisor do not reach the daemon's own mounts later, as with another propagation."""
    if not shared:
        mount("none", places.root, "", 1 << 18)  # MS_PRIVATE
    shm, files = share_memory(places), SharedFolder(places)
    files.prepare()
    shm.prepare()
    for gpu in GPUS[:2]:
        shm.mount(gpu)
        files.make_folders(gpu)
    (Path(places.shm_of(GPUS[0])) / "of gpu 0").touch()
    control = ControlProgram(str(FakeMps(tmp_path / "driver", GPUS, 2).root), places.root, shm.enter, answer_s=20.0)
    control.start(v2.start_daemon(multi_user=True), places.pipes_of(GPUS[0]), places.logs_of(GPUS[0]), GPUS[0])
    (daemon,) = ProcProcessTable(places.pipes).find()
    seen = Path(f"/proc/{daemon.pid}/root{shm.at}")
    assert names(seen) == ["of gpu 0"]
    shm.mount(GPUS[2])
    shm.unmount(GPUS[2])
    shm.unmount(GPUS[1])
    shm.unmount(GPUS[0])
    left = [line for line in Path(f"/proc/{daemon.pid}/mountinfo").read_text().splitlines() if " dracaena-mps " in line]
    assert [line.split()[4] for line in left] == [shm.at]
    assert names(seen) == ["of gpu 0"], "until it ends, it has what it began with"
    assert not os.path.ismount(shm.at) or shm.at == "/dev/shm", "this process keeps its own mounts"
    ProcProcessTable(places.pipes).kill(daemon)


@contextmanager
def driver_container(places: MpsPlaces, fake: FakeMps) -> Iterator[str]:
    """The folder of a driver container, which has a whole root with the driver's programs, but nothing of ours: all of
    this machine without the supervisor's file system."""
    with tempfile.TemporaryDirectory() as root:
        mount("/", root, "", MS_BIND | MS_REC)
        mount("none", root, "", MS_SLAVE | MS_REC)
        try:
            unmount(f"{root}{places.root}")
            mount("test", f"{root}/run", "tmpfs", 0, SMALL)
            Path(f"{root}/run/nvidia/bin").mkdir(parents=True)
            mount(f"{fake.root}/usr/bin", f"{root}/run/nvidia/bin", "", MS_BIND)
            yield root
        finally:
            unmount(root)


def test_a_program_with_another_root_finds_it_there(places: MpsPlaces, tmp_path: Path) -> None:
    shm = share_memory(places)
    shm.prepare()
    shm.mount(GPUS[0])
    (Path(places.shm_of(GPUS[0])) / "segment").touch()
    with driver_container(places, FakeMps(tmp_path / "driver", GPUS, 2)) as root:
        control = ControlProgram(root, places.root, shm.enter)

        def look() -> tuple[bytes, int]:
            folders = [f"{root}{shm.at}", f"{root}{places.shm}", f"{root}{places.shm_of(GPUS[0])}"]
            return repr([names(folder) for folder in folders]).encode(), 0

        seen, _ = control._with_mounts(GPUS[0], look)
        assert seen == repr([["segment"], names(places.shm), []]).encode()
        assert not Path(f"{root}{places.shm}").exists(), "mounts of ours would keep a folder that is removed"


def test_a_driver_container_that_comes_back_with_another_root_is_asked_there(places: MpsPlaces, tmp_path: Path) -> None:
    """As the supervisor sees it: the folder of the driver container is unmounted, and another one mounted there."""
    shm, files = share_memory(places), SharedFolder(places)
    files.prepare()
    shm.prepare()
    shm.mount(GPUS[0])
    files.make_folders(GPUS[0])
    pipes, table = places.pipes_of(GPUS[0]), ProcProcessTable(places.pipes)
    link = tmp_path / "driver"
    control = ControlProgram(str(link), places.root, shm.enter, answer_s=60.0)
    for number in range(2):
        with driver_container(places, FakeMps(tmp_path / f"driver-{number}", GPUS, 2)) as root:
            link.unlink(missing_ok=True)
            link.symlink_to(root)
            control.start(v2.start_daemon(multi_user=True), pipes, places.logs_of(GPUS[0]), GPUS[0])
            (daemon,) = table.find()
            assert Path(f"/proc/{daemon.pid}/root").readlink() == Path(root), "with the driver's own C library"
            while not (Path(pipes) / "control").exists():
                time.sleep(0.01)
            assert control.run(v2.list_servers(), pipes) == ""
            below = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
            assert f"{root}{places.root}" not in below
            table.kill(daemon)


def test_containers_see_it_through_a_bind_mount_of_its_folder(places: MpsPlaces) -> None:
    shm = share_memory(places)
    shm.prepare()
    shm.mount(GPUS[0])
    with tempfile.TemporaryDirectory() as container:
        mount(places.shm_of(GPUS[0]), container, "", MS_BIND)
        (Path(container) / "segment").write_bytes(b"x")
        assert (Path(places.shm_of(GPUS[0])) / "segment").exists()
        unmount(container)
