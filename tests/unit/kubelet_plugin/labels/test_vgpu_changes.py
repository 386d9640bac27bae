"""One GPU into its vGPU layout: each write refused once, hanging, and the process killed around each write."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.labels.vgpu_changes import VgpuRefusedError
from dracaena.kubelet_plugin.ports import WriteHangsError
from support.killed_steps import StopError
from support.seeds import in_tiers
from support.vgpu_layout_node import A100, H200, T4, VgpuLayoutNode

UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"
MIXED = {"A100_1_5C": 2, "A100_2_10C": 1, "A100_3_20C": 1}
CHANGES = [
    pytest.param(T4, {"T4_1B": 3}, {"T4_2Q": 2}, id="time-sliced mediated devices"),
    pytest.param(A100, {"A100_1_5C": 3, "A100_3_20C": 1}, MIXED, id="MIG-backed mediated devices"),
    pytest.param(H200, {"H200X_1_18C": 4}, {"H200X_1_18C": 2}, id="virtual functions"),
    pytest.param(H200, {"H200X_1_18C": 2}, {"H200X_141C": 1}, id="another type of virtual functions"),
    pytest.param(T4, {}, {"T4_2Q": 2}, id="from nothing"),
    pytest.param(A100, MIXED, {}, id="to nothing"),
]
Counts = dict[str, int]


@pytest.fixture
def node(tmp_path: Path) -> VgpuLayoutNode:
    return VgpuLayoutNode(tmp_path)


def named(counts: Counts) -> Counts:
    return {name.replace("_", "-"): count for name, count in counts.items()}


@pytest.mark.parametrize(("gpu", "first", "second"), CHANGES)
def test_a_gpu_gets_what_its_layout_says_and_keeps_what_both_have(
    node: VgpuLayoutNode, gpu: str, first: Counts, second: Counts
) -> None:
    node.bring(gpu, **first)
    assert node.counts(gpu) == named(first)
    before = node.there(gpu)
    written = len(node.vgpus.written)
    node.bring(gpu, **second)
    assert node.counts(gpu) == named(second)
    kept = sum(min(count, named(first).get(name, 0)) for name, count in named(second).items())
    assert len(before.items() & node.there(gpu).items()) == kept
    assert len(node.vgpus.written) - written == sum(first.values()) + sum(second.values()) - 2 * kept
    assert node.ours(gpu) == set(node.there(gpu))
    assert node.is_at_rest()
    assert all(node.counts(other) == {} for other in {T4, A100, H200} - {gpu})


def test_virtual_functions_are_filled_one_vgpu_each(node: VgpuLayoutNode) -> None:
    node.bring(A100, A100_1_5C=5)
    parents = {node.vgpus.mdev(identity).resolve().parent.name for identity in node.there(A100)}
    assert len(parents) == 5


def test_what_others_made_stays_and_so_does_the_gpu(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=1)
    node.vgpus.create(T4, 231, UUID)
    function = node.gpu(H200).functions[3].address
    node.vgpus.set_type(function, 1414)
    with pytest.raises(BlockedError, match=rf"layout made .{UUID}.*`echo 1 > /sys/bus/mdev/devices/{UUID}/rem"):
        node.bring(T4, T4_1B=1)
    with pytest.raises(BlockedError, match=f"`echo 0 > /sys/bus/pci/devices/{function}/nvidia/current_vgpu_type`"):
        node.bring(H200)
    assert (node.counts(T4), node.counts(H200)) == ({"T4-2Q": 2}, {"H200X-1-18C": 1})
    assert node.is_at_rest()


def test_a_function_that_somebody_gave_another_type_is_not_ours_any_more(node: VgpuLayoutNode) -> None:
    node.bring(H200, H200X_1_18C=1)
    (function,) = node.there(H200)
    node.vgpus.set_type(function, 0)
    node.vgpus.set_type(function, 1428)
    with pytest.raises(BlockedError):
        node.bring(H200)
    assert node.counts(H200) == {"H200X-141C": 1}


def test_what_cannot_be_had_is_refused_before_anything_is_removed(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=2)
    node.bring(H200, H200X_1_18C=2)
    for gpu, counts, words in (
        (T4, {"T4_8Q": 1}, "has no vGPU type T4-8Q, it has T4-1B, T4-2Q"),
        (T4, {"T4_1B": 17}, "has room for at most 16 x T4-1B, 17 are asked for"),
        (H200, {"H200X_1_18C": 8}, "has room for at most 7 x H200X-1-18C"),
        (H200, {"H200X_2_35C": 1}, "has no vGPU type H200X-2-35C, it has H200X-1-18C, H200X-141C"),
    ):
        with pytest.raises(BlockedError, match=rf"layout mine: GPU . .{gpu}. {words}"):
            node.bring(gpu, **counts)
    node.told = {}
    with pytest.raises(BlockedError, match=r"it is not known whether GPU 2 .* can have H200X-141C"):
        node.bring(H200, H200X_141C=1)
    assert (node.counts(T4), node.counts(H200)) == ({"T4-2Q": 2}, {"H200X-1-18C": 2})
    assert node.is_at_rest()


def test_what_only_the_driver_knows_to_be_too_much_is_told_and_another_layout_can_be_had(node: VgpuLayoutNode) -> None:
    node.bring(A100, A100_1_5C=1)
    with pytest.raises(
        VgpuRefusedError, match="there is no room for another A100-1-5C next to A100-1-5C, A100-3-20C, A1"
    ):
        node.bring(A100, A100_1_5C=2, A100_3_20C=2)
    assert not node.is_at_rest(), "something was made, so it has to be brought to an end"
    node.bring(A100, A100_1_5C=1)
    assert (node.counts(A100), node.is_at_rest()) == ({"A100-1-5C": 1}, True)


def test_a_gpu_whose_vgpus_are_in_use_is_left_alone(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=2)
    identity = next(iter(node.there(T4)))
    node.user = "claim default/vm has a vGPU of it"
    with pytest.raises(InUseError, match="claim default/vm"):
        node.bring(T4, T4_1B=1)
    node.user = None
    node.open(identity)
    with pytest.raises(InUseError, match=f"vGPU {identity} of GPU 0 .* is open in qemu-kvm .PID 4711."):
        node.bring(T4, T4_1B=1)
    assert (node.counts(T4), node.is_at_rest()) == ({"T4-2Q": 2}, True)
    node.close(identity)
    node.bring(T4, T4_1B=1)
    assert node.counts(T4) == {"T4-1B": 1}


@pytest.mark.parametrize("gpu", [T4, H200])
def test_one_that_is_still_there_after_its_removal_stays_ours(node: VgpuLayoutNode, gpu: str) -> None:
    """A kernel that is late: taken for somebody else's, it would hold the GPU until an admin removes it."""
    counts = {"T4_2Q": 2} if gpu == T4 else {"H200X_1_18C": 2}
    node.bring(gpu, **counts)
    node.vgpus.is_late = True
    with pytest.raises(TemporaryError, match="was to be removed, but is still there"):
        node.bring(gpu)
    node.start()
    node.vgpus.come()
    node.vgpus.is_late = False
    node.bring(gpu)
    assert (node.counts(gpu), node.is_at_rest()) == ({}, True)


def test_one_that_is_opened_while_another_is_removed_is_not_removed(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=2)
    first, second = sorted(node.there(T4))

    def opened(what: str) -> None:
        if what == f"after writing bus/mdev/devices/{first}/remove":
            node.open(second)

    node.start(opened)
    with pytest.raises(InUseError, match=f"vGPU {second} of GPU 0 .* is open in qemu-kvm"):
        node.bring(T4)
    assert [path for path, _ in node.vgpus.written if path.endswith("remove")] == [f"bus/mdev/devices/{first}/remove"]
    assert not node.is_at_rest()
    node.close(second)
    node.bring(T4)
    assert (node.counts(T4), node.is_at_rest()) == ({}, True)


def test_one_that_stays_may_be_open(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=1)
    (identity,) = node.there(T4)
    node.open(identity)
    node.bring(T4, T4_2Q=3)
    assert node.counts(T4) == {"T4-2Q": 3}
    assert identity in node.there(T4)


@pytest.mark.parametrize(("gpu", "counts"), [(T4, {"T4_2Q": 1}), (H200, {"H200X_1_18C": 1})])
def test_one_that_is_opened_after_the_look_is_refused_by_the_kernel_and_the_gpu_is_at_rest(
    node: VgpuLayoutNode, gpu: str, counts: Counts
) -> None:
    node.bring(gpu, **counts)
    (identity,) = node.there(gpu)
    node.vgpus.open_by.add(identity)
    with pytest.raises(VgpuRefusedError, match="the kernel refuses"):
        node.bring(gpu)
    assert (node.counts(gpu), node.is_at_rest()) == (named(counts), True)


def test_a_write_that_waits_in_the_kernel_is_not_repeated_and_what_it_did_later_is_known(node: VgpuLayoutNode) -> None:
    node.bring(T4, T4_2Q=2)
    identity = next(iter(node.there(T4)))
    node.vgpus.waits = True
    node.vgpus.open_by.add(identity)
    with pytest.raises(WriteHangsError):
        node.bring(T4, T4_1B=1)
    assert not node.is_at_rest()
    with pytest.raises(TemporaryError, match=f"an earlier write to /sys for the GPU at {T4} has not ended"):
        node.bring(T4, T4_1B=1)
    node.close(identity)
    node.bring(T4, T4_1B=1)
    assert (node.counts(T4), node.is_at_rest()) == ({"T4-1B": 1}, True)
    assert node.ours(T4) == set(node.there(T4))


@pytest.mark.parametrize(("number", "is_definite"), [(errno.ENOSPC, True), (255, False), (-9, False)])
def test_a_refusal_takes_the_note_back_and_an_answer_without_a_number_does_not(
    node: VgpuLayoutNode, number: int, is_definite: bool
) -> None:
    write = node.vgpus.write

    def fail(path: str, text: str) -> None:
        raise OSError(number, f"says so of {text.strip()!r} in {path}")

    node.vgpus.write = fail  # type: ignore[method-assign]
    with pytest.raises(TemporaryError, match="says so"):
        node.bring(T4, T4_2Q=1)
    assert (len(node.ours(T4)), node.is_at_rest()) == ((0, True) if is_definite else (1, False))
    node.vgpus.write = write  # type: ignore[method-assign]
    node.bring(T4, T4_2Q=1)
    assert (node.ours(T4), node.is_at_rest()) == (set(node.there(T4)), True)


@pytest.mark.parametrize(("gpu", "first", "second"), CHANGES)
@pytest.mark.parametrize("number", in_tiers(errno.ENOSPC, errno.EBUSY))
def test_each_write_may_be_refused_once_and_the_next_try_comes_to_the_same_end(
    tmp_path: Path, gpu: str, first: Counts, second: Counts, number: int
) -> None:
    for at in range(8):
        node = VgpuLayoutNode(tmp_path / f"{at}", gpu)
        node.bring(gpu, **first)
        left = [at]
        write = node.vgpus.write

        def once(path: str, text: str, left: list[int] = left, write: Callable[[str, str], None] = write) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(number, "once")
            write(path, text)

        node.vgpus.write = once  # type: ignore[method-assign]
        with suppress(DracaenaError):
            node.bring(gpu, **second)
        assert set(node.there(gpu)) <= node.ours(gpu), "a vGPU that is not noted"
        node.bring(gpu, **second)
        assert (node.counts(gpu), node.is_at_rest()) == (named(second), True)
        assert node.ours(gpu) == set(node.there(gpu))
        if left[0] >= 0:
            return


def test_after_a_reboot_the_layout_is_made_again(node: VgpuLayoutNode) -> None:
    for gpu, counts in ((T4, {"T4_2Q": 2}), (A100, MIXED), (H200, {"H200X_1_18C": 3})):
        node.bring(gpu, **counts)
        node.vgpus.boot()
        node.start(boot=f"boot after {gpu}")
        assert (node.there(gpu), node.ours(gpu)) == ({}, set())
        node.bring(gpu, **counts)
        assert node.counts(gpu) == named(counts)


def steps_of(folder: Path, gpu: str, first: Counts, second: Counts) -> list[str]:
    seen: list[str] = []
    node = VgpuLayoutNode(folder, gpu)
    node.bring(gpu, **first)
    node.start(seen.append)
    node.bring(gpu, **second)
    return seen


STRIDE = 5
"""Of the steps at which `make test` kills: odd, as they are before and after a change in turn."""


@pytest.mark.parametrize(("gpu", "first", "second"), CHANGES)
@pytest.mark.parametrize("goes_on", [True, False], ids=["the same layout", "the former one"])
@pytest.mark.parametrize("stride", in_tiers(STRIDE, 1))
def test_killed_at_any_write_it_comes_to_the_layout_that_is_wanted_then(
    tmp_path: Path, gpu: str, first: Counts, second: Counts, goes_on: bool, stride: int
) -> None:
    """With a stranger's vGPU on another GPU all the while, and an orphan that would be seen at the end."""
    other, type_number = (T4, 231) if gpu != T4 else (A100, 475)
    steps = steps_of(tmp_path / "whole", gpu, first, second)
    assert len([step for step in steps if step.startswith("before writing bus/")]) >= 2
    for number in range((1 - goes_on) % stride, len(steps), stride):
        node = VgpuLayoutNode(tmp_path / f"{goes_on}{number}", gpu, other)
        node.vgpus.create(node.gpu(other).functions[0].address, type_number, UUID)
        node.bring(gpu, **first)
        left = [number]

        def die(_what: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StopError

        node.start(die)
        with suppress(StopError):
            node.bring(gpu, **second)
        node.start()
        assert set(node.there(gpu)) <= node.ours(gpu), f"{steps[number]}: a vGPU that is not noted"
        if node.is_at_rest():
            assert node.counts(gpu) in (named(first), named(second)), steps[number]
        wanted = second if goes_on else first
        node.bring(gpu, **wanted)
        assert node.counts(gpu) == named(wanted), steps[number]
        assert (node.ours(gpu), node.is_at_rest()) == (set(node.there(gpu)), True), steps[number]
        assert list(node.there(other)) == [UUID]
