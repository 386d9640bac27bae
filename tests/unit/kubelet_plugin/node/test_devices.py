"""What a reading of the machine changes: the pool of prepare first, then what is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dracaena.api import limits
from dracaena.api.confidential import cc_mode_label
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.names import DeviceName, gpu_device_name, mig_layout_key, taint_key
from dracaena.api.objects import Taint
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.node.devices import EVERY_GPU, GONE, DevicesUnknownError
from support.gpu_lists import gpu_list
from support.machines import divided_machine
from support.mig_geometries import divisible_machine
from support.passthrough import NO_GPUS, passthrough_gpu, with_passthrough
from support.plugin import DRIVER
from support.published import Node
from support.vgpus import mediated, virtual_function, with_vgpus

MACHINE = divided_machine()
LAYOUT = mig_layout_key(DRIVER)


def test_before_the_first_reading_there_is_no_pool_and_the_reason_is_said() -> None:
    with pytest.raises(DevicesUnknownError, match="not known yet: waiting for the NVIDIA driver"):
        Node().devices.pool()


def test_what_is_published_can_be_prepared_at_that_moment() -> None:
    node = Node()
    node.devices.take(MACHINE)
    ((names, preparable),) = node.published
    assert names == [gpu_device_name(MACHINE.gpus[0].uuid), *(mig.device_name for mig in MACHINE.mig_devices)]
    assert set(names) <= preparable
    assert node.metrics.devices.skipped._value.get() == 1


def test_another_reading_replaces_the_pool() -> None:
    node = Node()
    node.devices.take(MACHINE)
    node.devices.take(replace(MACHINE, mig_devices=()))
    assert not node.devices.pool().mig_devices
    assert len(node.published[-1][0]) == 1


def test_a_label_that_changes_the_mode_of_gpus_for_virtual_machines_is_taken_with_the_next_reading() -> None:
    node = Node()
    machine = with_passthrough(NO_GPUS, [passthrough_gpu(0)])

    def mode() -> str | None:
        attribute = node.devices_published[0].attributes.get("ccMode")
        return None if attribute is None else attribute.string

    node.devices.take(machine)
    assert mode() is None
    node.labels = {"nvidia.com/cc.mode.state": "on", f"{DRIVER}/cc-mode": "off"}
    node.devices.look_again()
    assert (mode(), [told.reason for told in node.troubles[-1]]) == ("on", ["ConfidentialModeDiffers"])
    published = len(node.published)
    node.devices.look_again()
    node.labels["example.com/other"] = "x"
    node.devices.look_again()
    assert len(node.published) == published, "nothing changed"
    node.labels = {}
    node.devices.look_again()
    assert (mode(), node.troubles[-1]) == (None, ())


def test_a_reading_that_cannot_be_published_leaves_the_last_one() -> None:
    node = Node()
    node.devices.take(MACHINE)
    nameless = replace(MACHINE.gpus[0], uuid="GPU-?")
    with pytest.raises(TopologyError, match="makes no device name"):
        node.devices.take(replace(MACHINE, gpus=(nameless, MACHINE.gpus[1])))
    assert len(node.published) == 1
    assert len(node.devices.pool().mig_devices) == 3


def test_what_is_watched_is_published_once_its_health_was_looked_at() -> None:
    node = Node(watched=True)
    node.devices.take(MACHINE)
    assert node.devices.pool().gpus
    assert node.published == []
    node.devices.take_taints({})
    assert len(node.published) == 1


@pytest.mark.parametrize("layouts_first", [True, False])
def test_what_has_a_layout_is_published_once_that_was_looked_at(*, layouts_first: bool) -> None:
    node, gpu = Node(watched=True, laid_out=(LAYOUT,)), MACHINE.mig_devices[0].parent_uuid
    node.devices.take(MACHINE)
    steps: list[Callable[[], None]] = [
        lambda: node.devices.take_taints({}),
        lambda: node.devices.withhold(LAYOUT, [gpu]),
    ]
    for step in reversed(steps) if layouts_first else steps:
        assert node.published == []
        step()
    assert len(node.published) == 1
    assert {name for name, taints in node.taints.items() if LAYOUT in taints} == {
        mig.device_name for mig in MACHINE.mig_devices if mig.parent_uuid == gpu
    }


def test_no_withheld_gpu_is_as_good_an_answer() -> None:
    node = Node(laid_out=(LAYOUT,))
    node.devices.take(MACHINE)
    node.devices.withhold(LAYOUT, [])
    assert len(node.published) == 1


def test_taints_of_health_stand_behind_ours_and_follow_the_device_through_readings() -> None:
    node, name = Node(watched=True), MACHINE.mig_devices[0].device_name
    node.devices.take_taints({name: [Taint(f"{DRIVER}/xid", "79", "NoSchedule")]})
    node.devices.take(MACHINE)
    node.devices.take(replace(MACHINE, driver_version="590.10"))
    assert node.taints.pop(name) == [taint_key(DRIVER), f"{DRIVER}/xid"]
    assert set(map(tuple, node.taints.values())) == {(taint_key(DRIVER),)}


def test_a_device_that_cannot_be_prepared_is_a_trouble_and_a_gpu_that_is_divided_is_none() -> None:
    node = Node()
    node.devices.take(MACHINE)
    assert node.troubles == [()]
    nameless = replace(MACHINE.gpus[0], minor=None)
    node.devices.take(replace(MACHINE, gpus=(nameless, *MACHINE.gpus[1:])))
    ((told,),) = node.troubles[1:]
    assert (told.reason, told.subject) == ("DeviceSkipped", gpu_device_name(nameless.uuid))
    assert "minor number" in told.text


def test_a_gpu_that_takes_the_index_of_a_lost_one_is_not_shared_in_its_place() -> None:
    gpus = [replace(gpu, mig_enabled=False, memory_bytes=80 << 30) for gpu in MACHINE.gpus]
    whole = replace(MACHINE, gpus=tuple(gpus), mig_devices=())
    node = Node(gpus=gpu_list(shared="0"))

    def shared() -> list[str]:
        return [device.name for device in node.devices_published if device.allow_multiple_allocations]

    node.devices.take(whole)
    assert shared() == [gpu_device_name(gpus[0].uuid)]
    swapped = (replace(gpus[1], index=0), replace(gpus[0], index=1))
    node.devices.take(replace(whole, gpus=swapped))
    assert shared() == [gpu_device_name(gpus[0].uuid)]
    ((told,),) = node.troubles[1:]
    assert (told.reason, told.subject) == ("GpusUnclear", "0")
    assert f"is GPU {gpus[1].uuid} now" in told.text


SLICED = divisible_machine(2)


def with_device(start: int) -> Machine:
    """The same machine while a MIG device lies on GPU 0, which is in MIG mode for it."""
    mig = MigDevice(SLICED.gpus[0].uuid, "MIG-1", 1, 0, "1g.10gb", start, 1)
    return replace(SLICED, gpus=(replace(SLICED.gpus[0], mig_enabled=True), SLICED.gpus[1]), mig_devices=(mig,))


def test_a_device_that_a_claim_made_changes_nothing_that_is_published() -> None:
    node = Node(gpus=gpu_list(mig="0"))
    node.devices.take(SLICED)
    assert len(node.devices_published) == 2 + 25
    before = (node.devices_published, node.counters)
    busy = with_device(4)
    node.own = {busy.mig_devices[0].device_name}
    node.devices.take(busy)
    assert (node.devices_published, node.counters) == before
    assert set(node.published[-1][0]) <= node.published[-1][1]
    assert node.troubles == [(), ()]


def test_a_device_that_no_claim_made_is_taken_out_of_the_counters_and_told() -> None:
    node = Node(gpus=gpu_list(mig="all"))
    node.devices.take(with_device(4))
    first, second = (node.counters[gpu_device_name(gpu.uuid)] for gpu in SLICED.gpus)
    assert (first["memory-slice-4"], second["memory-slice-4"]) == ("0", "1")
    assert (first["compute-slices"], second["compute-slices"]) == ("6", "7")
    ((told,),) = node.troubles
    assert (told.reason, told.subject) == ("MigTaken", gpu_device_name(SLICED.gpus[0].uuid))
    node.devices.take(SLICED)
    assert node.counters[gpu_device_name(SLICED.gpus[0].uuid)] == second
    assert node.troubles[-1] == ()


def test_a_place_has_the_taints_of_its_gpu_and_its_own_where_a_device_lies() -> None:
    node = Node(gpus=gpu_list(mig="0"))
    node.devices.take(SLICED)
    gpu = gpu_device_name(SLICED.gpus[0].uuid)
    own = with_device(4).mig_devices[0].device_name
    sick, worse = Taint(f"{DRIVER}/xid", "79", "NoSchedule"), Taint(f"{DRIVER}/ecc", "1", "NoSchedule")
    node.devices.take_taints({gpu: [sick], own: [worse]})
    tainted = {
        tuple(keys[1:]) for name, keys in node.taints.items() if name not in (own, gpu_device_name(SLICED.gpus[1].uuid))
    }
    assert tainted == {(sick.key,)}
    assert node.taints[own][1:] == [worse.key]


def gone(node: Node) -> dict[str, str]:
    """What is told to be gone: the pool's, if the same places and no others have the taint."""
    told = dict(node.devices.pool().vanished)
    tainted = {name for name, keys in node.taints.items() if f"{DRIVER}/{GONE}" in keys}
    assert tainted == set(told)
    return {str(place): uuid for place, uuid in told.items()}


def test_a_claims_device_is_gone_once_two_readings_in_a_row_lack_it() -> None:
    """In a rolling update the other instance may have made it after a reading was begun."""
    node, there = Node(gpus=gpu_list(mig="0")), with_device(4)
    (mig,) = there.mig_devices
    empty, name = replace(there, mig_devices=()), mig.device_name
    node.own, node.made = {name}, {name: MadeDevice(mig.parent_uuid, mig.uuid)}
    node.devices.take(empty)
    assert gone(node) == {}
    node.devices.take(there)
    node.devices.take(empty)
    assert gone(node) == {}, "the two were not in a row"
    node.devices.look_again()
    assert gone(node) == {name: mig.uuid}
    node.made = {name: MadeDevice(mig.parent_uuid, "MIG-2")}
    node.devices.look_again()
    assert gone(node) == {}, "another device was made there"
    node.devices.look_again()
    assert gone(node) == {name: "MIG-2"}
    node.made = {}
    node.devices.look_again()
    assert gone(node) == {}


def test_a_device_that_was_known_to_be_gone_before_a_restart_is_so_at_the_first_reading() -> None:
    node, there = Node(gpus=gpu_list(mig="0")), with_device(4)
    (mig,) = there.mig_devices
    node.made = {mig.device_name: MadeDevice(mig.parent_uuid, mig.uuid, known_gone=True)}
    node.devices.take(replace(there, mig_devices=()))
    assert gone(node) == {mig.device_name: mig.uuid}
    node.devices.take(there)
    assert gone(node) == {}


def test_gpus_that_cannot_be_divided_are_said_and_stay_whole() -> None:
    node = Node(gpus=gpu_list(mig="0,7"))
    ampere = divisible_machine(1, "Ampere")
    node.devices.take(replace(ampere, gpus=(replace(ampere.gpus[0], mig_enabled=False),)))
    assert [device.name for device in node.devices_published] == [gpu_device_name(ampere.gpus[0].uuid)]
    assert node.counters == {}
    assert [told.reason for told in node.troubles[0]] == ["GpusUnclear", "GpusUnclear"]


def test_an_ampere_gpu_in_mig_mode_has_its_places_alone() -> None:
    node = Node(gpus=gpu_list(mig="all"))
    node.devices.take(divisible_machine(1, "Ampere"))
    assert len(node.devices_published) == 25
    assert node.troubles == [()]


def test_whose_a_device_is_may_change_while_the_machine_stays_the_same() -> None:
    node = Node(gpus=gpu_list(mig="0"))
    busy, gpu = with_device(4), gpu_device_name(SLICED.gpus[0].uuid)
    node.own = {busy.mig_devices[0].device_name}
    node.devices.take(busy)
    node.devices.look_again()
    assert len(node.published) == 1
    node.own = set()
    node.devices.look_again()
    assert node.counters[gpu]["memory-slice-4"] == "0"
    assert [told.reason for told in node.troubles[-1]] == ["MigTaken"]
    node.devices.look_again()
    assert len(node.published) == 2


def test_a_node_without_divided_gpus_does_not_ask_whose_devices_are() -> None:
    node = Node()
    node.devices.look_again()
    node.devices.take(with_device(4))
    node.own_asked = 0
    node.devices.look_again()
    assert node.own_asked == 0
    assert len(node.published) == 1


def test_devices_of_a_gpu_that_is_withheld_have_a_taint_more_and_no_others() -> None:
    node = Node()
    node.devices.take(MACHINE)
    free = dict(node.taints)
    whole, divided = MACHINE.gpus
    for gpu in (whole, divided):
        of_gpu = {gpu_device_name(gpu.uuid), *(m.device_name for m in MACHINE.mig_devices if m.parent_uuid == gpu.uuid)}
        node.devices.withhold(LAYOUT, [gpu.uuid])
        for name, keys in node.taints.items():
            assert keys == [*free[name], *([LAYOUT] if name in of_gpu else [])]
    node.devices.take(MACHINE)
    assert node.taints != free, "another reading changes nothing of it"
    before = len(node.published)
    node.devices.withhold(LAYOUT, [divided.uuid])
    assert len(node.published) == before
    node.devices.withhold(LAYOUT, [])
    assert node.taints == free


def test_vgpus_of_a_gpu_are_withheld_by_its_address_under_a_key_of_their_own() -> None:
    node, key = Node(laid_out=(LAYOUT, f"{DRIVER}/vgpu-layout")), f"{DRIVER}/vgpu-layout"
    of_another = virtual_function(0, parent="0000:99:00.0")
    node.devices.take(with_vgpus(NO_GPUS, mediated(0), mediated(1), of_another))
    node.devices.withhold(LAYOUT, [])
    assert node.published == [], "what vGPU layouts withhold is not said yet"
    node.devices.withhold(key, [mediated(0).parent])
    assert {name for name, taints in node.taints.items() if key in taints} == {
        mediated(0).device_name, mediated(1).device_name,
    }  # fmt: skip
    node.devices.withhold(key, [])
    assert not any(key in taints for taints in node.taints.values())


def test_all_devices_of_a_node_are_withheld_together_and_nothing_is_published_before_that_was_said() -> None:
    key = cc_mode_label(DRIVER)
    node = Node(laid_out=[key])
    node.devices.take(MACHINE)
    assert node.published == []
    node.devices.withhold(key, [EVERY_GPU])
    assert set(map(tuple, node.taints.values())) == {(taint_key(DRIVER), key)}
    assert {each.taints[-1].value for each in node.devices_published} == {"changing"}
    before = len(node.published)
    node.devices.withhold(key, [EVERY_GPU])
    assert len(node.published) == before
    node.devices.withhold(key, [])
    assert set(map(tuple, node.taints.values())) == {(taint_key(DRIVER),)}


def test_gpus_for_virtual_machines_have_the_mode_that_is_known_of_them() -> None:
    known: dict[str, str] = {}
    node = Node(guest_modes=lambda: known)
    node.labels = {cc_mode_label(DRIVER): "on"}
    node.devices.take(with_passthrough(NO_GPUS, [passthrough_gpu(0), passthrough_gpu(1)]))
    assert modes_of(node) == [None, None]
    known[passthrough_gpu(1).pci_bus_id] = "on"
    node.devices.look_again()
    assert modes_of(node) == [None, "on"]
    assert node.troubles[-1] == (), "who switches modes tells of those that differ"


def modes_of(node: Node) -> list[str | None]:
    found = (device.attributes.get("ccMode") for device in node.devices_published)
    return [None if each is None else each.string for each in found]


def test_a_device_with_all_the_taints_that_there_may_be_is_withheld_too() -> None:
    node = Node()
    node.devices.take(MACHINE)
    name = DeviceName(gpu_device_name(MACHINE.gpus[0].uuid))
    many = [Taint(key=f"t{number}", effect="NoSchedule") for number in range(limits.DEVICE_TAINTS - 1)]
    node.devices.take_taints({name: many})
    node.devices.withhold(LAYOUT, [MACHINE.gpus[0].uuid])
    assert len(node.taints[name]) == limits.DEVICE_TAINTS
    assert node.taints[name][0] == taint_key(DRIVER)
    assert node.taints[name][-1] == LAYOUT
