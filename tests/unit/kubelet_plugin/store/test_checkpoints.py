"""What Checkpoints remembers of the files is what the files say, whoever wrote them."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.store.checkpoints import Checkpoints
from support.plugin import ThreadLock, prepared_claim
from support.seeds import fewer_examples

CLAIMS = ("a", "b", "c")
BOOT = "boot-1"


class QuickSteps(FileSteps):
    """Leaves out what only a power cut would tell."""

    def fsync(self, descriptor: int) -> None:
        pass


class FailingSteps(FileSteps):
    """The next rename fails where `fails` is set."""

    fails = False

    def rename(self, source: Path, target: Path, folder: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError(28, "No space left on device")
        super().rename(source, target, folder)


def instance(folder: Path, lock: ThreadLock, steps: FileSteps | None = None, boot: str = BOOT) -> Checkpoints:
    files = DocumentFolder(folder, steps=steps or QuickSteps())
    return Checkpoints(files, DocumentFolder(folder.parent), boot, lambda: lock.turn)


def fresh(folder: Path) -> Checkpoints:
    return instance(folder, ThreadLock())


def test_a_claim_that_was_prepared_in_an_earlier_boot_is_not_answered_when_it_starts_in_this_one(
    tmp_path: Path,
) -> None:
    """None of its containers runs any more, so a preparation that fails now can be rolled back."""
    earlier = instance(tmp_path, ThreadLock())
    earlier.finish(earlier.start(prepared_claim("a")))
    assert earlier.start(prepared_claim("a")).answered, "in the same boot containers may run"
    earlier.finish(earlier.start(prepared_claim("a")))
    now = instance(tmp_path, ThreadLock(), boot="boot-2")
    started = now.start(prepared_claim("a"))
    assert not started.answered
    assert not now.may_be_in_use(ClaimUid("a"))
    assert now.prepared() == ()


@settings(max_examples=fewer_examples(2))  # real files
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.booleans(), st.sampled_from(["start", "finish", "remove", "break", "look"]), st.sampled_from(CLAIMS)
            ),
            max_size=4,
        ),
        max_size=8,
    )
)
def test_two_instances_that_take_turns_see_what_the_files_say(turns: list[list[tuple[bool, str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, lock = Path(name), ThreadLock()
        one, other = instance(folder, lock), instance(folder, lock)
        for steps in turns:
            # All of a turn is done by one instance: the other waits for the lock.
            mine = one if steps and steps[0][0] else other
            with lock.hold():
                for _, step, claim in steps:
                    if step == "start":
                        mine.start(prepared_claim(claim))
                    elif step == "finish":
                        mine.finish(mine.start(prepared_claim(claim, (1,))))
                    elif step == "remove":
                        mine.remove(ClaimUid(f"{claim}-uid"))
                    assert mine.load_by_boot() == fresh(folder).load_by_boot()
            if any(step == "break" for _, step, _ in steps):  # somebody else, without our lock
                (folder / "new").write_bytes(b"broken")
                (folder / "new").replace(folder / "a-uid.json")
            with lock.hold():
                assert one.load_by_boot() == other.load_by_boot() == fresh(folder).load_by_boot()


def test_a_write_that_failed_leaves_what_is_on_disk(tmp_path: Path) -> None:
    lock, steps = ThreadLock(), FailingSteps()
    checkpoints = instance(tmp_path, lock, steps)
    with lock.hold():
        started = checkpoints.start(prepared_claim("a"))
        checkpoints.load_all()
        steps.fails = True
        with pytest.raises(DracaenaError):
            checkpoints.finish(started)
        assert checkpoints.load_all() == fresh(tmp_path).load_all()
        assert checkpoints.prepared() == ()


def test_a_claim_whose_checkpoint_was_lost_counts_as_prepared_from_its_new_one_on(tmp_path: Path) -> None:
    """Its containers may run, although the new checkpoint says no more than that it has started."""
    lock = ThreadLock()
    checkpoints = instance(tmp_path, lock)
    with lock.hold():
        assert checkpoints.prepared() == ()
        checkpoints.start(prepared_claim("a"), lost=True)
        checkpoints.set_aside(prepared_claim("b"), "a reason", planned=False)
        assert checkpoints.prepared() == fresh(tmp_path).prepared() == (prepared_claim("a"), prepared_claim("b"))


class Counting(DocumentFolder):
    """Counts the looks at all files."""

    looks = 0

    def stamps(self, suffix: str) -> Mapping[str, Hashable]:
        self.looks += 1
        return super().stamps(suffix)


def test_the_files_are_looked_at_once_while_nobody_else_writes(tmp_path: Path) -> None:
    lock, folder = ThreadLock(), Counting(tmp_path)
    checkpoints = Checkpoints(folder, folder, BOOT, lambda: lock.turn)
    with lock.hold():
        checkpoints.load_all()
        checkpoints.finish(checkpoints.start(prepared_claim("a")))
        checkpoints.finish(checkpoints.start(prepared_claim("b")))
        checkpoints.remove(ClaimUid("b-uid"))
        assert [p.claim.name for p in checkpoints.prepared()] == ["a"]
    for _ in range(3):
        with lock.hold():
            assert [p.claim.name for p in checkpoints.prepared()] == ["a"]
    assert folder.looks == 1


def test_what_the_other_instance_did_in_the_same_tick_is_seen(tmp_path: Path) -> None:
    lock = ThreadLock()
    one, other = instance(tmp_path, lock), instance(tmp_path, lock)
    for _ in range(30):
        for mine, theirs in ((one, other), (other, one)):
            with lock.hold():
                mine.load_all()
                mine.finish(mine.start(prepared_claim("a")))
            with lock.hold():
                assert [p.claim.name for p in theirs.prepared()] == ["a"]
                theirs.remove(ClaimUid("a-uid"))
            with lock.hold():
                assert mine.prepared() == ()


def test_where_a_folder_takes_no_mark_all_files_are_looked_at_each_time(tmp_path: Path) -> None:
    class Unmarked(Counting):
        def set_mark(self) -> Hashable | None:
            return None

    lock, folder = ThreadLock(), Unmarked(tmp_path)
    checkpoints = Checkpoints(folder, folder, BOOT, lambda: lock.turn)
    for looks in (1, 2, 3):
        with lock.hold():
            checkpoints.load_all()
        assert folder.looks == looks


def test_a_file_that_was_changed_in_place_is_seen_when_each_is_looked_at(tmp_path: Path) -> None:
    lock = ThreadLock()
    checkpoints = instance(tmp_path, lock)
    with lock.hold():
        checkpoints.load_all()
        checkpoints.finish(checkpoints.start(prepared_claim("a")))
    (tmp_path / "a-uid.json").write_bytes(b"broken")
    with lock.hold():
        checkpoints.look_at_each()
        assert checkpoints.load_all() == fresh(tmp_path).load_all()
