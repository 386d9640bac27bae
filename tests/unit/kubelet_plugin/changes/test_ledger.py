"""Notes as a disk, a crash or another boot may leave them: each is read, or an answer that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.changes.change import Note, Thing, Unreadable
from dracaena.kubelet_plugin.changes.kinds.time_slices import NotedInterval
from dracaena.kubelet_plugin.changes.ledger import Ledger
from support.full_disk import FullDisk
from support.plugin import ThreadLock

THING = Thing("time-slice", "gpu-1")
NOTE = Note(
    "boot-1",
    {"uid": ({"interval": "Long", "required": True},)},
    NotedInterval(TimeSliceInterval.DEFAULT, (TimeSliceInterval.SHORT, TimeSliceInterval.LONG)),
)


def ledger(folder: Path, boot_id: str = "boot-1", steps: FileSteps | None = None) -> Ledger:
    files = DocumentFolder(folder, steps=steps or FileSteps(), synced=False, in_place_if_full=True)
    return Ledger(files, ThreadLock(), boot_id)


def test_what_was_written_is_read_by_its_kind_and_in_its_boot_alone(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    made.write(THING, NOTE)
    assert made.read(THING, NotedInterval) == NOTE
    assert made.things("time-slice") == (THING,)
    assert made.things("time") == ()
    other = ledger(tmp_path, "boot-2")
    assert (other.read(THING, NotedInterval), other.things("time-slice")) == (None, (THING,))
    assert other.read_of_any_boot(THING, NotedInterval) == NOTE
    made.drop(THING)
    made.drop(THING)
    assert (made.read(THING, NotedInterval), made.things("time-slice")) == (None, ())


def test_equal_notes_make_equal_files(tmp_path: Path) -> None:
    made, files = ledger(tmp_path), set()
    for order in (("one", "two"), ("two", "one")):
        made.write(THING, Note("boot-1", {uid: ({"interval": "Long"},) for uid in order}, NOTE.noted))
        files.add((tmp_path / "time-slice.gpu-1.json").read_bytes())
    assert len(files) == 1


def test_a_first_start_in_a_boot_forgets_all_even_what_is_broken_but_nothing_of_this_boot_or_that_outlives_boots(
    tmp_path: Path,
) -> None:
    ledger(tmp_path).write(THING, NOTE)
    (tmp_path / "time-slice.gpu-2.json").write_bytes(b"torn")
    (tmp_path / "cc-modes.node.json").write_bytes(b"torn too")
    now = ledger(tmp_path, "boot-2")
    now.write(Thing("time-slice", "gpu-3"), Note("boot-2", {}, NOTE.noted))
    now.clear()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cc-modes.node.json", "time-slice.gpu-3.json"]


@pytest.mark.parametrize(
    "hostile", [b"", b"[]", b"\xff\xfe", b'{"checksum": "", "note": {}}', b'{"x":' * 100_000, b'{"checksum":"\xff"}']
)
def test_what_is_no_note_is_an_answer_that_names_the_file(tmp_path: Path, hostile: bytes) -> None:
    (tmp_path / "time-slice.gpu-1.json").write_bytes(hostile)
    found = ledger(tmp_path).read(THING, NotedInterval)
    assert isinstance(found, Unreadable)
    assert found.problem.startswith("its note time-slice.gpu-1.json is broken (")


@given(data=st.data())
def test_a_file_that_is_changed_anywhere_says_the_same_or_is_unreadable(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    made = ledger(folder)
    made.write(THING, NOTE)
    path = folder / "time-slice.gpu-1.json"
    file = path.read_bytes()
    start = data.draw(st.integers(0, len(file)), label="start")
    end = data.draw(st.integers(start, len(file)), label="end")
    path.write_bytes(file[:start] + data.draw(st.binary(max_size=4), label="in place of it") + file[end:])
    found = made.read(THING, NotedInterval)
    assert isinstance(found, Unreadable) or found == NOTE


def test_on_a_full_disk_an_owner_can_go_and_none_can_come(tmp_path: Path) -> None:
    owners = {"one": ({"interval": "Long"},), "two": ({"interval": "Long"},)}
    ledger(tmp_path).write(THING, Note("boot-1", owners, NOTE.noted))
    full = ledger(tmp_path, steps=FullDisk(0))
    full.write(THING, Note("boot-1", {"one": owners["one"]}, NOTE.noted))
    assert full.read(THING, NotedInterval) == Note("boot-1", {"one": owners["one"]}, NOTE.noted)
    with pytest.raises(TemporaryError, match="No space left"):
        full.write(THING, Note("boot-1", {str(number): owners["one"] for number in range(200)}, NOTE.noted))
    full.drop(THING)
    assert full.things("time-slice") == ()
