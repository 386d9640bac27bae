from __future__ import annotations

from dataclasses import replace

from dracaena.api.names import DeviceName, GpuUuid
from dracaena.kubelet_plugin.device_kinds.mig_place import as_before, made_devices, with_made
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice, MadeInstance
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.mig_node import instance, mig_node
from support.plugin import prepared_claim

MADE = MadeInstance("1g.10gb", 4, 1, 3, "MIG-1", (12, 13))


def planned() -> tuple[PreparedClaim, Effect]:
    """A claim that is to get a MIG device."""
    with mig_node() as node:
        effect = instance(node, "1g.10gb", 4)
    claim = prepared_claim()
    device = replace(claim.devices[0], device=effect.device, uuid=GpuUuid(""), parent_uuid=GpuUuid("GPU-1"), index=0)
    return replace(claim, devices=(device,), wants=(effect,)), effect


def checkpoint(claim: PreparedClaim) -> Checkpoint:
    return Checkpoint(State.DONE, "boot-1", claim)


def test_a_device_has_the_numbers_that_were_noted_when_it_was_made() -> None:
    claim, effect = planned()
    (device,) = with_made(claim, lambda asked: MADE if asked == effect else None).devices
    assert (device.uuid, device.gpu_instance_id, device.access_minors) == ("MIG-1", 3, (12, 13))
    for unfinished in (None, replace(MADE, uuid=None), replace(MADE, nodes=None)):
        assert with_made(claim, lambda _effect, noted=unfinished: noted) == claim  # type: ignore[misc]


def test_a_device_that_is_there_again_has_its_number_and_another_in_its_place_has_not() -> None:
    claim, _ = planned()
    (device,) = with_made(claim, lambda _effect: MADE).devices
    gone = replace(device, index=None, gpu_instance_id=None)
    assert as_before(replace(gone, index=0), [device]) == device
    other = replace(gone, uuid=GpuUuid("MIG-2"))
    assert as_before(other, [device]) == other
    assert as_before(replace(device, gpu_instance_id=5), [device]).gpu_instance_id == 5


def test_a_device_must_be_there_once_it_was_made_and_a_reading_can_show_it() -> None:
    claim, effect = planned()
    assert made_devices([checkpoint(claim)], ()) == {}
    done = with_made(claim, lambda _effect: MADE)
    assert made_devices([checkpoint(done)], ()) == {effect.device: MadeDevice("GPU-1", "MIG-1")}
    assert made_devices([checkpoint(done)], {effect.device}) == {}
    assert made_devices([checkpoint(replace(done, wants=()))], ()) == {}, "an admin made it"


def test_a_device_for_which_its_claim_was_set_aside_is_known_to_be_gone() -> None:
    claim, effect = planned()
    done = with_made(claim, lambda _effect: MADE)
    for index, provisional, expected in ((0, False, False), (None, False, True), (None, True, False)):
        lost = replace(done, devices=(replace(done.devices[0], index=index),))
        aside = replace(checkpoint(lost), aside="it is gone", provisional=provisional)
        assert made_devices([aside], ())[DeviceName(effect.device)].known_gone is expected
