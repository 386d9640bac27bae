from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.discovery.mig.on_demand import as_published, divided_gpus, taken_by_others, vanished
from support.gpu_lists import gpu_list
from support.mig_geometries import A100_40GB, H100_80GB, divisible_machine


def machine(**changes: Any) -> Machine:
    """Two H100, an A100 in MIG mode, one that is not, and a GPU without MIG; `changes` are of GPU 0."""
    made = divisible_machine(5)
    ampere = {"architecture": "Ampere", "mig_profiles": A100_40GB, "product_name": "A100"}
    each: list[dict[str, Any]] = [
        {"mig_enabled": False, **changes}, {"mig_enabled": False}, {**ampere, "mig_enabled": True},
        {**ampere, "mig_enabled": False}, {"architecture": "Ada", "mig_profiles": (), "mig_enabled": None},
    ]  # fmt: skip
    return replace(made, gpus=tuple(replace(gpu, **facts) for gpu, facts in zip(made.gpus, each, strict=True)))


def mig(gpu: Gpu, profile: str, start: int, size: int, number: int = 1) -> MigDevice:
    return MigDevice(gpu.uuid, f"MIG-{number}", number, 0, profile, start, size)


def divided(setting: str, node: Machine) -> tuple[set[int], set[int], list[str]]:
    found = divided_gpus(gpu_list(mig=setting), node)
    index = {gpu.uuid: gpu.index for gpu in node.gpus}
    return {index[u] for u in found.uuids}, {index[u] for u in found.switched}, list(found.problems.values())


@pytest.mark.parametrize(
    ("setting", "uuids", "switched"),
    [("", set(), set()), ("all", {0, 1, 2}, {0, 1}), ("1", {1}, {1}), ("2", {2}, set()), ("0, A100", {0, 2}, {0})],
)
def test_gpus_are_divided_that_need_no_reset_for_it(setting: str, uuids: set[int], switched: set[int]) -> None:
    found = divided(setting, machine())
    assert found[:2] == (uuids, switched)
    assert len(found[2]) == (1 if "A100" in setting else 0)  # the one that is not in MIG mode


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("3", "Ampere enters it by a reset"),
        ("4", "has no MIG"),
        ("9", "'9' is not an index"),
    ],
)
def test_what_is_named_and_cannot_be_divided_is_said(setting: str, words: str) -> None:
    (problem,) = divided(setting, machine())[2]
    assert words in problem


def test_a_gpu_of_which_only_its_places_are_not_told_is_said_with_all_too() -> None:
    uuids, _, (problem,) = divided("all", machine(mig_profiles=()))
    assert uuids == {1, 2}
    assert "turn that on once" in problem


def test_what_is_published_does_not_change_with_the_devices_that_exist() -> None:
    node = machine()
    busy = replace(
        node,
        gpus=(replace(node.gpus[0], mig_enabled=True), *node.gpus[1:]),
        mig_devices=(mig(node.gpus[0], "1g.10gb", 4, 1), mig(node.gpus[2], "1g.5gb", 0, 1, 2)),
    )
    assert (
        as_published(busy, divided_gpus(gpu_list(mig="all"), busy))
        == as_published(node, divided_gpus(gpu_list(mig="all"), node))
        == node
    )
    assert as_published(busy, divided_gpus(gpu_list(mig=""), busy)) is busy
    other = as_published(busy, divided_gpus(gpu_list(mig="1"), busy))
    assert other.mig_devices == busy.mig_devices


def test_devices_that_no_claim_made_take_of_their_gpu_what_they_are() -> None:
    node = machine()
    gpu, other = node.gpus[:2]
    migs = (
        mig(gpu, "1g.10gb", 0, 1), mig(gpu, "1c.3g.40gb", 4, 4, 2), mig(gpu, "2c.3g.40gb", 4, 4, 2),
        mig(gpu, "1g.10gb+me", 1, 1, 3), mig(other, "5g.70gb", 0, 2, 4), mig(node.gpus[3], "1g.5gb", 0, 1, 5),
    )  # fmt: skip
    node = replace(node, mig_devices=migs)
    taken = taken_by_others(node, divided_gpus(gpu_list(mig="all"), node), {migs[0].device_name})
    slices = {f"memory-slice-{number}": 1 for number in (1, 4, 5, 6, 7)}
    assert taken == {
        gpu.uuid: {**slices, "compute-slices": 4, "ofa-engines": 1},
        other.uuid: {"memory-slice-0": 1, "memory-slice-1": 1},
    }
    assert gpu.mig_profiles == H100_80GB


def test_an_instance_without_a_mig_device_takes_of_its_gpu_what_it_is_unless_a_claim_is_getting_it() -> None:
    node = machine()
    gpu = node.gpus[0]
    empty = (EmptyGpuInstance(gpu.uuid, 1, "3g.40gb", 4, 4), EmptyGpuInstance(gpu.uuid, 2, "1g.10gb", 0, 1))
    node = replace(node, empty_gpu_instances=empty)
    divided = divided_gpus(gpu_list(mig="all"), node)
    taken = taken_by_others(node, divided, {empty[1].device_name})
    assert taken == {gpu.uuid: {**{f"memory-slice-{number}": 1 for number in (4, 5, 6, 7)}, "compute-slices": 3}}
    assert as_published(node, divided).empty_gpu_instances == ()


def test_a_device_has_vanished_once_its_gpu_tells_devices_and_none_has_its_uuid() -> None:
    node = machine(mig_enabled=True)
    gpu, silent = node.gpus[0], node.gpus[4]
    there = mig(gpu, "1g.10gb", 3, 1)
    name = there.device_name
    made = {name: MadeDevice(gpu.uuid, there.uuid)}
    assert vanished(replace(node, mig_devices=(there,)), made) == {}
    assert vanished(replace(node, mig_devices=(replace(there, uuid="MIG-other"),)), made) == {name: there.uuid}
    assert vanished(node, made) == {name: there.uuid}
    for gpu_that_says_nothing in (silent.uuid, "GPU-lost"):
        assert vanished(node, {name: MadeDevice(gpu_that_says_nothing, there.uuid)}) == {}
