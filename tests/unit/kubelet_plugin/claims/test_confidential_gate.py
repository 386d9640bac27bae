"""Claims for GPUs that compute confidentially: prepared once the driver says that they take work, refused before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dracaena.api.confidential import MODE_STATE_LABEL, READY_STATE_LABEL
from dracaena.api.errors import TemporaryError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.confidential_gate import ConfidentialGate, NotConfidentialError, confidential_gate
from dracaena.kubelet_plugin.device_kinds.plan import gated_devices
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.plugin import DRIVER, NODE, PluginNode, claim_of, device_name, make_claim, make_pool, reference_to

READY = ConfidentialState("on", ready=True)
UNREADY = ConfidentialState("on", ready=False)


def pool_in(mode: str | None) -> PublishedPool:
    pool = make_pool()
    gpus = {name: dataclasses.replace(gpu, cc_mode=mode) for name, gpu in pool.gpus.items()}
    return dataclasses.replace(pool, gpus=MappingProxyType(gpus))


def requiring(*devices: str, source: str = "FromClass", more: tuple[Any, ...] = (), **result: Any) -> ResourceClaim:
    """A claim for which a class, or it itself, requires that its GPUs compute confidentially."""
    results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **result} for device in devices]
    return claim_of("claim", {"results": results, "config": [config(source, confidential="Required"), *more]})


def config(source: str, requests: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


class Driver:
    """A gate before a driver whose state a test sets."""

    def __init__(self, pool: PublishedPool) -> None:
        self.state = READY
        self.error: TemporaryError | None = None
        self.asked = 0
        self.labels: dict[str, str] = {}
        self.known: dict[str, str] = {}
        self.pool = pool
        self.gate = ConfidentialGate(self._read, lambda: self.labels, lambda: self.known)

    def refuse(self, claim: ResourceClaim) -> None:
        self.gate.refuse(gated_devices(claim, self.pool))

    def _read(self) -> ConfidentialState:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.state


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(NotConfidentialError, match=text):
        yield


def test_a_claim_is_prepared_once_its_gpu_takes_work_and_nothing_is_left_of_it_before(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, pool=pool_in("on"), confidential=UNREADY)
    claim = make_claim()
    node.claims.put(claim)
    before = node.files()
    for _ in range(2):  # kubelet asks again
        with refused("request gpus: gpu-.* takes no work: whoever attests .* `nvidia-smi conf-compute -srs 1`"):
            node.state.prepare(reference_to(claim))
        assert node.files() == before
    node.confidential = READY
    assert node.state.prepare(reference_to(claim)).devices[0].device == device_name(0)


def test_what_is_prepared_is_answered_again_while_the_driver_starts_anew(tmp_path: Path) -> None:
    """Its containers are started again with what they had; the taint tells that the GPU takes no work."""
    node = PluginNode(tmp_path, pool=pool_in("on"), confidential=READY)
    claim = make_claim()
    node.claims.put(claim)
    prepared = node.state.prepare(reference_to(claim))
    node.confidential = UNREADY
    assert node.state.prepare(reference_to(claim)) == prepared


@pytest.mark.parametrize("mode", [None, "off"])
def test_where_no_gpu_computes_confidentially_nobody_is_asked(mode: str | None) -> None:
    driver = Driver(pool_in(mode))
    driver.state = ConfidentialState(mode)
    driver.refuse(make_claim(devices=(0, 1)))
    assert driver.asked == 0


@pytest.mark.parametrize("source", ["FromClass", "FromClaim"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ConfidentialState("off"), "its mode is off: an admin must switch the GPUs of this node"),
        (ConfidentialState("devtools", ready=True), "its mode is devtools: an admin"),
        (ConfidentialState(), "the NVIDIA driver does not report its mode: an admin"),
    ],
)
def test_a_gpu_that_lost_its_mode_since_it_was_allocated_is_not_given_to_who_requires_it(
    state: ConfidentialState, words: str, source: str
) -> None:
    driver = Driver(pool_in("on"))  # as it was read last
    driver.state = state
    with refused(words):
        driver.refuse(requiring(device_name(3), source=source))


def test_a_requirement_of_a_class_is_not_taken_back_by_the_claim() -> None:
    driver = Driver(pool_in("off"))
    driver.state = ConfidentialState("off")
    silent = config("FromClaim", sharing={"enforcement": "BestEffort"})
    with refused("requires that gpu-"):
        driver.refuse(requiring(device_name(0), more=(silent,)))


def test_a_requirement_for_one_request_holds_for_its_sub_requests_and_for_no_other() -> None:
    driver = Driver(pool_in("off"))
    driver.state = ConfidentialState("off")
    results = [
        {"request": request, "driver": DRIVER, "pool": NODE, "device": device_name(place)}
        for place, request in enumerate(("secret/first", "plain"))
    ]
    claim = claim_of("c", {"results": results, "config": [config("FromClaim", ("secret",), confidential="Required")]})
    with pytest.raises(NotConfidentialError) as error:
        driver.refuse(claim)
    assert "request secret/first" in str(error.value)
    assert "request plain" not in str(error.value)


def test_all_gpus_that_cannot_be_given_are_named_at_once() -> None:
    driver = Driver(pool_in("on"))
    driver.state = UNREADY
    with pytest.raises(NotConfidentialError) as error:
        driver.refuse(make_claim(devices=(1, 4)))
    assert all(device_name(place) in str(error.value) for place in (1, 4))


def test_a_driver_that_does_not_tell_whether_it_takes_work_is_not_believed_to() -> None:
    driver = Driver(pool_in("on"))
    driver.state = ConfidentialState("on", ready=None)
    with refused("does not tell whether it takes work"):
        driver.refuse(make_claim())


def test_who_attests_may_look_at_any_time() -> None:
    driver = Driver(pool_in("on"))
    driver.state = UNREADY
    driver.refuse(requiring(device_name(0), adminAccess=True))
    assert driver.asked == 0


def test_a_driver_that_does_not_answer_lets_nobody_through() -> None:
    driver = Driver(pool_in("on"))
    driver.error = TemporaryError("the NVIDIA driver does not answer")
    with pytest.raises(TemporaryError, match="does not answer"):
        driver.refuse(make_claim())


@pytest.mark.parametrize("device", ["vfio-0000-e1-00-0", "vgpu-0000-e1-00-4"])
def test_of_a_gpu_for_virtual_machines_the_driver_of_the_host_is_not_asked(device: str) -> None:
    driver = Driver(pool_in("on"))
    with refused("the mode of GPUs for virtual machines on this node is not known"):
        driver.refuse(requiring(device))
    driver.labels = {MODE_STATE_LABEL: "on", READY_STATE_LABEL: "false"}
    with refused("is in mode on, and label nvidia.com/cc.ready.state of this node does not say `true`"):
        driver.refuse(requiring(device))
    driver.labels = {MODE_STATE_LABEL: "on", READY_STATE_LABEL: "true"}
    driver.refuse(requiring(device))
    driver.refuse(claim_of("c", {"results": [{"request": "r", "driver": DRIVER, "pool": NODE, "device": device}]}))
    assert driver.asked == 0


def test_a_mode_that_the_plugin_has_set_and_read_counts_before_the_labels_of_another() -> None:
    driver = Driver(pool_in("off"))
    driver.labels = {MODE_STATE_LABEL: "on", READY_STATE_LABEL: "true"}
    driver.known = {"0000:e1:00.0": "off"}
    with refused("its mode is off"):
        driver.refuse(requiring("vfio-0000-e1-00-0"))
    driver.refuse(requiring("vfio-0000-e2-00-0"))
    driver.labels, driver.known = {}, {"0000:e1:00.0": "on"}
    driver.refuse(requiring("vfio-0000-e1-00-0"))  # its guest attests it: nobody on the host has to say so
    with refused("is not known"):
        driver.refuse(requiring("vgpu-0000-e1-00-0"))


def test_devices_of_other_drivers_and_claims_without_allocation_are_left_alone() -> None:
    driver = Driver(pool_in("on"))
    driver.state = UNREADY
    driver.refuse(claim_of("c", None))
    nic = {"request": "r", "driver": "nic.example.com", "pool": NODE, "device": device_name(0)}
    driver.refuse(claim_of("c", {"results": [nic]}))


def test_a_recorded_machine_runs_nothing_that_had_to_be_attested() -> None:
    gate = confidential_gate(None, lambda: pool_in("on"))
    gated = gated_devices(requiring(device_name(0)), pool_in("on"))
    gate.refuse(gated)
    with refused("its mode is off"):
        confidential_gate(None, lambda: pool_in("off")).refuse(gated)
