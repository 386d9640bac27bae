from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.discovery.publish.sharing import shared_gpus
from support.gpu_lists import gpu_list
from support.machines import plain_machine

GIB = 1 << 30
NAMES = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla T4", None)


def machine(**changes: Any) -> Machine:
    """GPUs 0 and 1 of one product, 2 of another, 3 of none that is known; `changes` are of GPU 0."""
    made = plain_machine(4)
    gpus: Sequence[Gpu] = [
        replace(gpu, product_name=name, memory_bytes=80 * GIB) for gpu, name in zip(made.gpus, NAMES, strict=True)
    ]
    return replace(made, gpus=(replace(gpus[0], **changes), *gpus[1:]))


def shared(setting: str, **changes: Any) -> tuple[set[int], list[str]]:
    """Indices of the GPUs that are shared, and what is wrong."""
    node = machine(**changes)
    found = shared_gpus(gpu_list(shared=setting), node)
    return {gpu.index for gpu in node.gpus if gpu.uuid in found.uuids}, list(found.problems.values())


@pytest.mark.parametrize(
    ("setting", "gpus"),
    [
        ("", set()),
        ("all", {0, 1, 2, 3}),
        ("All", {0, 1, 2, 3}),
        ("0", {0}),
        (" 0 , 2 ", {0, 2}),
        ("Tesla T4", {2}),
        ("nvidia a100-sxm4-80gb", {0, 1}),
        ("tesla t4,3,3", {2, 3}),
    ],
)
def test_a_setting_names_gpus_by_index_or_product_or_all(setting: str, gpus: set[int]) -> None:
    assert shared(setting) == (gpus, [])


def test_a_setting_names_a_gpu_by_its_uuid_in_any_case() -> None:
    uuid = machine().gpus[1].uuid
    assert shared(uuid) == shared(uuid.upper()) == ({1}, [])


@pytest.mark.parametrize("word", ["4", "-1", "1-2", "GPU-0", "A100", "0x0", "everything"])
def test_a_word_that_names_nothing_is_told_with_what_there_is_and_the_others_hold(word: str) -> None:
    gpus, (problem,) = shared(f"2,{word}")
    assert gpus == {2}
    assert problem == (
        f"{word.lower()!r} is not an index, UUID, PCI address or product of a GPU of this node "
        "(indices 0, 1, 2, 3; NVIDIA A100-SXM4-80GB, Tesla T4)"
    )


def test_an_index_stays_with_the_gpu_that_had_it_first() -> None:
    before = machine()
    first = {gpu.index: gpu.uuid for gpu in before.gpus}
    uuids = [gpu.uuid for gpu in before.gpus]
    assert shared_gpus(gpu_list(shared="0,1"), before, first) == shared_gpus(gpu_list(shared="0,1"), before)
    # GPU 0 falls off the bus, and the others move up.
    left = [replace(gpu, index=gpu.index - 1) for gpu in before.gpus[1:]]
    after = replace(plain_machine(3), gpus=tuple(left))
    found = shared_gpus(gpu_list(shared="0"), after, first)
    assert found.uuids == set()
    assert found.problems == {
        "0": f"index 0 was GPU {uuids[0]} when the plugin started and is GPU {uuids[1]} now, which it does not "
        "select: use UUIDs or PCI addresses"
    }
    assert shared_gpus(gpu_list(shared="1"), after, first).uuids == {uuids[1]}
    assert list(shared_gpus(gpu_list(shared="1"), after, first).problems) == ["1"]
    assert shared_gpus(gpu_list(shared="3"), after, first).uuids == {uuids[3]}
    assert shared_gpus(gpu_list(shared="3"), after, first).problems == {}
    assert shared_gpus(gpu_list(shared=f"{uuids[1]},tesla t4"), after, first).uuids == {uuids[1], uuids[2]}


@pytest.mark.parametrize(
    ("changes", "text", "of_all"),
    [
        ({"memory_bytes": None}, "it is not known how much memory GPU", True),
        ({"memory_bytes": (2 << 20) - 1}, "too few to be shared", True),
        ({"mig_enabled": True}, "is divided into MIG devices", False),
    ],
)
def test_a_gpu_that_cannot_be_shared_is_told(changes: dict[str, Any], text: str, of_all: bool) -> None:
    gpus, (problem,) = shared("0,1", **changes)
    assert gpus == {1}
    assert text in problem
    gpus, problems = shared("all", **changes)
    assert gpus == {1, 2, 3}
    assert len(problems) == of_all


def test_a_machine_without_gpus_has_none_to_share() -> None:
    none = replace(machine(), gpus=(), topology=plain_machine(0).topology)
    assert shared_gpus(gpu_list(shared="all"), none).problems == {}
    assert "which has none" in shared_gpus(gpu_list(shared="0"), none).problems["0"]
