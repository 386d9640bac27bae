"""What NodeClaims remembers of the files is what the files say, whoever wrote them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.ports import StampedStore
from dracaena.kubelet_plugin.store.claims import NodeClaims, differing
from support.plugin import (
    DRIVER,
    FakeClaims,
    PluginNode,
    ThreadLock,
    device_name,
    make_claim,
    node_claims,
    prepared_claim,
    reference_to,
)
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


def claims_in(files: StampedStore, lock: ThreadLock, boot: str = BOOT) -> NodeClaims:
    specs, marks = DocumentFolder(Path("nowhere")), DocumentFolder(Path("nowhere"))
    return NodeClaims(driver=DRIVER, boot_id=boot, lock=lock, checkpoints=files, specs=specs, marks=marks)


def instance(folder: Path, lock: ThreadLock, steps: FileSteps | None = None, boot: str = BOOT) -> NodeClaims:
    return claims_in(DocumentFolder(folder, steps=steps or QuickSteps()), lock, boot)


def fresh(folder: Path) -> NodeClaims:
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
    assert not now.may_be_in_use(ClaimUid("a-uid"))
    started = now.start(prepared_claim("a"))
    assert not started.answered
    assert not now.may_be_in_use(ClaimUid("a-uid"))
    assert now.prepared() == ()


def test_a_checkpoint_of_an_earlier_boot_that_is_written_again_stays_one(tmp_path: Path) -> None:
    earlier = instance(tmp_path, ThreadLock())
    done = earlier.start(prepared_claim("a"))
    earlier.finish(done)
    now = instance(tmp_path, ThreadLock(), boot="boot-2")
    with now.hold():
        assert now.current() == ()
        now.want(done, ())
        assert now.by_boot() == instance(tmp_path, ThreadLock(), boot="boot-2").by_boot() == ((), (done,), ())
        now.finish(done)
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
            with mine.hold():
                for _, step, claim in steps:
                    if step == "start":
                        mine.start(prepared_claim(claim))
                    elif step == "finish":
                        mine.finish(mine.start(prepared_claim(claim, (1,))))
                    elif step == "remove":
                        mine.remove(ClaimUid(f"{claim}-uid"))
                    assert mine.by_boot() == fresh(folder).by_boot()
            if any(step == "break" for _, step, _ in steps):  # somebody else, without our lock
                (folder / "new").write_bytes(b"broken")
                (folder / "new").replace(folder / "a-uid.json")
            assert one.by_boot() == other.by_boot() == fresh(folder).by_boot()


def test_a_write_that_failed_leaves_what_is_on_disk(tmp_path: Path) -> None:
    lock, steps = ThreadLock(), FailingSteps()
    claims = instance(tmp_path, lock, steps)
    with claims.hold():
        started = claims.start(prepared_claim("a"))
        claims.by_boot()
        steps.fails = True
        with pytest.raises(DracaenaError):
            claims.finish(started)
        assert claims.by_boot() == fresh(tmp_path).by_boot()
        assert claims.prepared() == ()


def test_a_claim_whose_checkpoint_was_lost_counts_as_prepared_from_its_new_one_on(tmp_path: Path) -> None:
    """Its containers may run, although the new checkpoint says no more than that it has started."""
    lock = ThreadLock()
    claims = instance(tmp_path, lock)
    with claims.hold():
        assert claims.prepared() == ()
        claims.start(prepared_claim("a"), lost=True)
        claims.set_aside(prepared_claim("b"), "a reason", provisional=True)
        assert claims.prepared() == fresh(tmp_path).prepared() == (prepared_claim("a"), prepared_claim("b"))


class Counting(DocumentFolder):
    """Counts the looks at all files."""

    looks = 0

    def stamps(self, suffix: str) -> Mapping[str, Hashable]:
        self.looks += 1
        return super().stamps(suffix)


def test_the_files_are_looked_at_once_while_nobody_else_writes(tmp_path: Path) -> None:
    lock, folder = ThreadLock(), Counting(tmp_path)
    claims = claims_in(folder, lock)
    with claims.hold():
        claims.by_boot()
        claims.finish(claims.start(prepared_claim("a")))
        claims.finish(claims.start(prepared_claim("b")))
        claims.remove(ClaimUid("b-uid"))
        assert [p.claim.name for p in claims.prepared()] == ["a"]
    for _ in range(3):
        with claims.hold():
            assert [p.claim.name for p in claims.prepared()] == ["a"]
    assert folder.looks == 1


def test_what_the_other_instance_did_in_the_same_tick_is_seen(tmp_path: Path) -> None:
    lock = ThreadLock()
    one, other = instance(tmp_path, lock), instance(tmp_path, lock)
    for _ in range(30):
        for mine, theirs in ((one, other), (other, one)):
            with mine.hold():
                mine.by_boot()
                mine.finish(mine.start(prepared_claim("a")))
            with theirs.hold():
                assert [p.claim.name for p in theirs.prepared()] == ["a"]
                theirs.remove(ClaimUid("a-uid"))
            assert mine.prepared() == ()


def test_where_a_folder_takes_no_mark_all_files_are_looked_at_each_time(tmp_path: Path) -> None:
    class Unmarked(Counting):
        def set_mark(self) -> Hashable | None:
            return None

    lock, folder = ThreadLock(), Unmarked(tmp_path)
    claims = claims_in(folder, lock)
    for looks in (1, 2, 3):
        with claims.hold():
            claims.by_boot()
        assert folder.looks == looks


def test_a_file_that_was_changed_in_place_is_seen_when_each_is_looked_at(tmp_path: Path) -> None:
    lock = ThreadLock()
    claims = instance(tmp_path, lock)
    with claims.hold():
        claims.by_boot()
        claims.finish(claims.start(prepared_claim("a")))
    (tmp_path / "a-uid.json").write_bytes(b"broken")
    with claims.hold():
        claims.look_at_each()
        assert claims.by_boot() == fresh(tmp_path).by_boot()


class CountedLock(ThreadLock):
    """Counts how often it is taken."""

    taken = 0

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        with super().hold(within_s):
            self.taken += 1
            yield


QUESTIONS: Mapping[str, Callable[[NodeClaims], object]] = {
    "of": lambda claims: claims.of(ClaimUid("a-uid")),
    "current_of": lambda claims: claims.current_of(ClaimUid("a-uid")),
    "may_be_in_use": lambda claims: claims.may_be_in_use(ClaimUid("a-uid")),
    "current": NodeClaims.current,
    "broken": NodeClaims.broken,
    "uids": NodeClaims.uids,
    "prepared": NodeClaims.prepared,
    "unsure": NodeClaims.unsure,
    "who_has": lambda claims: claims.who_has(None),
    "wanting": lambda claims: claims.wanting("kind"),
    "with_spec": NodeClaims.with_spec,
    "has_spec": lambda claims: claims.has_spec(ClaimUid("a-uid")),
    "start": lambda claims: claims.start(prepared_claim("a")),
    "finish": lambda claims: claims.finish(claims.start(prepared_claim("a"))),
    "remove": lambda claims: claims.remove(ClaimUid("a-uid")),
    "remove_spec": lambda claims: claims.remove_spec(ClaimUid("a-uid")),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_each_question_and_each_change_waits_for_the_lock_and_within_a_block_takes_it_no_second_time(
    tmp_path: Path, ask: Callable[[NodeClaims], object]
) -> None:
    lock = CountedLock()
    claims = node_claims(tmp_path, lock=lock)
    ask(claims)
    alone = lock.taken
    assert alone in (1, 2), "of two steps each takes it"
    with claims.hold(), claims.hold():
        ask(claims)
    assert lock.taken == alone + 1


def test_the_lock_is_held_to_the_end_of_the_outermost_block(tmp_path: Path) -> None:
    claims = node_claims(tmp_path)

    def is_free() -> bool:
        def hold() -> None:
            with claims.hold(0.0):
                pass

        with ThreadPoolExecutor(1) as other:
            return other.submit(hold).exception() is None

    with claims.hold():
        with claims.hold():
            assert not is_free()
        assert not is_free()
    assert is_free()


def test_what_is_unsure_is_each_broken_checkpoint_and_each_spec_without_one(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, FakeClaims(*(made := [make_claim(f"claim-{gpu}", (gpu,)) for gpu in range(4)])))
    for claim in made:
        node.state.prepare(reference_to(claim))
    assert node.node_claims.unsure() == ()
    (tmp_path / "claims" / "claim-0-uid.json").write_bytes(b"broken")
    (tmp_path / "claims" / "claim-1-uid.json").write_bytes(b"broken too")
    node.node_claims.remove_spec(ClaimUid("claim-1-uid"))
    (tmp_path / "claims" / "claim-2-uid.json").unlink()
    node.node_claims.look_at_each()
    found = {broken.uid: (broken.problem, salvaged.devices) for broken, salvaged in node.node_claims.unsure()}
    assert {uid: [each.device for each in devices] for uid, (_, devices) in found.items()} == {
        "claim-0-uid": [device_name(0)], "claim-1-uid": [], "claim-2-uid": [device_name(2)]
    }  # fmt: skip
    assert found[ClaimUid("claim-2-uid")][0] == "is gone"


def test_a_spec_that_cannot_be_read_may_be_about_anything_and_one_without_devices_is_of_no_claim(
    tmp_path: Path,
) -> None:
    claims = node_claims(tmp_path)
    claims.write_spec(ClaimUid("empty"), b"{}")
    assert claims.with_spec() == {"empty"}
    assert claims.unsure() == ()
    (spec,) = (tmp_path / "cdi").iterdir()
    spec.unlink()
    spec.symlink_to(tmp_path / "elsewhere")
    ((broken, salvaged),) = claims.unsure()
    assert (broken.uid, salvaged.devices) == ("empty", ())
    assert claims.who_has(device_name(0)) is not None


@settings(derandomize=True)
@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_what_differs_of_two_sequences_is_what_the_other_lacks(old: set[int], new: set[int]) -> None:
    things = [object() for _ in range(13)]
    gone, come = differing([things[n] for n in sorted(old)], [things[n] for n in sorted(new)])
    assert (gone, come) == ([things[n] for n in sorted(old - new)], [things[n] for n in sorted(new - old)])
