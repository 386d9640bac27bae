"""The real pynvml on a fake driver: what is read, and what each refusal leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.links import LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlError, NvmlLibrary
from dracaena.host.facts.machine import LeftOut, MachineFacts
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.discovery.build import build_machine, read_facts
from support.fake_nvml import SYMBOLS, FakeNvml
from support.fake_nvml_values import FakeLink, FakeMig
from support.topologies import topology_from_matrix

ERROR_CODES = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")} | {77}  # 77: none that we know
)
NEEDED = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
CLUSTER = "6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f"


def gpu(ordinal: int) -> Gpu:
    return Gpu(
        uuid=f"GPU-00000000-0000-0000-0000-{ordinal:012}",
        index=ordinal,
        minor=ordinal + 3,
        product_name="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        cuda_compute_capability="9.0",
        memory_bytes=85520809984,
        pci_bus_id=f"0000:{0x18 + ordinal:02x}:00.0",
        pcie_generation=5,
        pcie_width=16,
        nvlink_count=4,
        nvlink_generation=4,
        fabric_clique=f"{CLUSTER}.7",
        mig_enabled=ordinal == 1,
        cc_capable=True,
        cc_mode="on",
    )


MACHINE = Machine(
    name="four",
    gpus=tuple(gpu(ordinal) for ordinal in range(3)),
    topology=topology_from_matrix([["X", "NV2", "NV2"], ["NV2", "X", "NV2"], ["NV2", "NV2", "X"]]),
    driver_version="535.104.05",
    cuda_driver_version="12.2",
)
MIG = FakeMig(
    parent=1,
    number=2,
    uuid="MIG-7ec3a1a0-9f0e-5d7c-8b57-0d4d2b1e9f11",
    name="NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
    gpu_instance=9,
    compute_instance=0,
    start=4,
    size=2,
    memory_mib=9984,
    multiprocessors=16,
)


@pytest.fixture
def fake() -> FakeNvml:
    return FakeNvml(MACHINE, migs=(MIG,))


@pytest.fixture
def reader(fake: FakeNvml) -> Iterator[NvmlReader]:
    found = NvmlReader(NvmlLibrary(lambda: fake))
    yield found
    fake.allow()
    found.close()


def test_all_facts_of_a_gpu_are_read(reader: NvmlReader) -> None:
    machine = build_machine(reader.read(), name="four")
    assert machine.gpus == MACHINE.gpus
    assert (machine.driver_version, machine.cuda_driver_version) == ("535.104.05", "12.2")
    assert {link.nvlinks for link in machine.topology.pairs} == {2}


def test_nothing_is_left_out_but_what_nobody_told(reader: NvmlReader) -> None:
    left_out = reader.read().left_out
    assert {out.call for out in left_out} == {"nvmlDeviceGetTopologyCommonAncestor"}


def test_a_driver_without_confidential_computing_leaves_both_facts_out(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.confidential = None
    facts = reader.read()
    assert {(gpu.cc_capable, gpu.cc_mode) for gpu in build_machine(facts, name="Ampere").gpus} == {(None, None)}
    refused = [out for out in facts.left_out if "ConfCompute" in out.call]
    assert [(out.reason, out.may_pass) for out in refused] == [("NOT_SUPPORTED", False)] * 2, "not asked for in haste"


def test_tools_for_developers_are_a_mode_of_their_own(fake: FakeNvml, reader: NvmlReader) -> None:
    assert fake.confidential is not None
    fake.confidential.dev_tools = 1
    assert {gpu.cc_mode for gpu in build_machine(reader.read(), name="open to tools").gpus} == {"devtools"}
    fake.confidential.feature = 0
    assert {gpu.cc_mode for gpu in build_machine(reader.read(), name="off").gpus} == {"off"}


def test_a_mig_device_is_read_with_its_place(reader: NvmlReader) -> None:
    (mig,) = reader.read().mig_devices
    assert (mig.parent_uuid, mig.uuid) == (MACHINE.gpus[1].uuid, MIG.uuid)
    assert (mig.gpu_instance_id, mig.compute_instance_id, mig.start, mig.size) == (9, 0, 4, 2)
    assert (mig.profile, mig.memory_bytes, mig.multiprocessors) == ("1g.10gb+me", 9984 << 20, 16)


def test_a_mig_device_whose_place_is_not_told_is_not_named(fake: FakeNvml, reader: NvmlReader) -> None:
    assert [mig.uuid for mig in read_facts(reader.read(), name="mig").machine.mig_devices] == [MIG.uuid]
    fake.refuse("nvmlDeviceGetGpuInstanceById", pynvml.NVML_ERROR_NO_PERMISSION)
    assert read_facts(reader.read(), name="mig").machine.mig_devices == ()


def test_links_to_switches_need_no_address(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.links = [[FakeLink(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)] * 18 for _ in fake.links]
    machine = build_machine(reader.read(), name="switched")
    assert {link.nvlinks for link in machine.topology.pairs} == {18}
    assert "nvmlDeviceGetNvLinkRemotePciInfo_v2" not in fake.calls


def test_a_link_that_is_down_counts_nowhere(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.links[0][0] = replace(fake.links[0][0], state=pynvml.NVML_FEATURE_DISABLED)
    machine = build_machine(reader.read(), name="one down")
    assert machine.gpus[0].nvlink_count == 3
    assert machine.topology.link(0, 1).nvlinks == 1
    assert machine.topology.link(1, 2).nvlinks == 2


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_each_refusal_leaves_a_field_out_or_is_a_clear_error(symbol: str) -> None:
    for code in ERROR_CODES:
        with refusing(symbol, code) as reader:
            if symbol in NEEDED:
                with pytest.raises(NvmlError, match="the NVIDIA driver"):
                    reader.read()
                continue
            machine = build_machine(reader.read(), name=f"refused with {code}")
            assert [known.uuid for known in machine.gpus] == [known.uuid for known in MACHINE.gpus], code
            assert_nothing_invented(machine)


@contextmanager
def refusing(symbol: str, code: int) -> Iterator[NvmlReader]:
    """A reader of a library that refuses one call with one error."""
    fake = FakeNvml(MACHINE, migs=(MIG,))
    reader = NvmlReader(NvmlLibrary(lambda: fake))
    fake.refuse(symbol, code)
    yield reader
    fake.allow()
    reader.close()


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_each_missing_symbol_leaves_a_field_out_or_is_a_clear_error(
    fake: FakeNvml, reader: NvmlReader, symbol: str
) -> None:
    fake.missing.add(symbol)
    if symbol in NEEDED:
        with pytest.raises(NvmlError, match="FUNCTION_NOT_FOUND"):
            reader.read()
        return
    facts = reader.read()
    assert_nothing_invented(build_machine(facts, name="old driver"))
    assert "FUNCTION_NOT_FOUND" in {out.reason for out in facts.left_out}


@settings(derandomize=True)
@given(
    refusals=st.dictionaries(
        st.tuples(st.sampled_from([s for s in SYMBOLS if s not in NEEDED]), st.sampled_from([None, 0, 1, 2])),
        st.sampled_from(ERROR_CODES),
    )
)
def test_no_mix_of_refusals_invents_or_crashes(refusals: dict[tuple[str, int | None], int]) -> None:
    fake = FakeNvml(MACHINE, migs=(MIG,))
    for (symbol, ordinal), code in refusals.items():
        fake.refuse(symbol, code, ordinal)
    reader = NvmlReader(NvmlLibrary(lambda: fake))
    try:
        assert_nothing_invented(build_machine(reader.read(), name="mixed"))
    finally:
        reader.close()


def assert_nothing_invented(machine: Machine) -> None:
    """Every field is either left out or the true one. Without links, no NVLink may be shown."""
    truth = {known.uuid: known for known in MACHINE.gpus}
    for found in machine.gpus:
        for field in Gpu.__dataclass_fields__:
            value, true_value = getattr(found, field), getattr(truth[found.uuid], field)
            assert value in (None, true_value) or (field == "nvlink_count" and value == 0), field
    assert {link.nvlinks for link in machine.topology.pairs} <= {None, 0, 2}


def test_one_lost_gpu_leaves_the_others(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.refuse("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    facts = reader.read()
    assert [found.index for found in facts.gpus] == [0, 2]
    lost = LeftOut("GPU 1", "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")
    assert lost in facts.left_out
    assert lost.may_pass


def test_a_gpu_without_uuid_is_left_out_by_name(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_TIMEOUT, gpu=2)
    facts = reader.read()
    assert LeftOut("GPU 2", "nvmlDeviceGetUUID", "TIMEOUT") in facts.left_out


def test_a_uuid_that_is_no_text_is_a_clear_error(fake: FakeNvml, reader: NvmlReader) -> None:
    broken = type("Broken", (FakeNvml,), {"_nvmlDeviceGetUUID": lambda _self, _h, buffer, _n: _garbage(buffer)})(
        MACHINE
    )
    with pytest.raises(NvmlError, match="its answer is not text"):
        NvmlReader(NvmlLibrary(lambda: broken)).read()


def _garbage(buffer: object) -> int:
    buffer.value = b"\xff\xfe"  # type: ignore[attr-defined]  # a ctypes buffer
    return 0


def test_a_node_without_gpus_is_an_empty_machine() -> None:
    empty = Machine(name="none", gpus=(), topology=topology_from_matrix([]))
    reader = NvmlReader(NvmlLibrary(lambda: FakeNvml(empty)))
    assert reader.read() == MachineFacts(gpus=(), left_out=reader.read().left_out)
    reader.close()


def test_an_unknown_error_of_init_says_what_is_waited_for(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.refuse("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(GpuDriverNotReadyError, match="waiting for the NVIDIA driver: its kernel module is not loaded"):
        reader.read()


def test_the_library_is_looked_for_again_after_a_failed_start() -> None:
    early = FakeNvml(MACHINE)
    early.refuse("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    libraries = iter([early, FakeNvml(MACHINE)])
    reader = NvmlReader(NvmlLibrary(lambda: next(libraries)))
    with pytest.raises(GpuDriverNotReadyError):
        reader.read()
    assert len(reader.read().gpus) == 3
    reader.close()


@pytest.mark.parametrize("code", ERROR_CODES)
def test_handles_of_a_reloaded_driver_are_fetched_anew(code: int) -> None:
    old, new = FakeNvml(MACHINE), FakeNvml(MACHINE)
    libraries = iter([old, new])
    reader = NvmlReader(NvmlLibrary(lambda: next(libraries)))
    reader.read()
    old.refuse("nvmlDeviceGetCount_v2", code)
    with pytest.raises(NvmlError, match="how many GPUs"):
        reader.read()
    assert len(reader.read().gpus) == 3
    assert new.calls
    reader.close()


def test_a_lost_gpu_does_not_close_the_driver_for_the_others(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.lost.add(1)
    assert [found.index for found in reader.read().gpus] == [0, 2]
    assert fake.opened == 1
    fake.lost.clear()
    assert [found.index for found in reader.read().gpus] == [0, 1, 2]


def test_a_field_that_is_refused_does_not_close_the_driver(fake: FakeNvml, reader: NvmlReader) -> None:
    fake.refuse("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    reader.read()
    assert "nvmlShutdown" not in fake.calls


def test_addresses_beyond_the_short_form_keep_their_place() -> None:
    far = replace(MACHINE, gpus=tuple(replace(known, pci_bus_id=None) for known in MACHINE.gpus))
    fake = FakeNvml(far)
    fake.address = lambda ordinal: PciAddress(0x10000 - ordinal, 1, 0, 0)  # type: ignore[method-assign]
    reader = NvmlReader(NvmlLibrary(lambda: fake))
    machine = build_machine(reader.read(), name="far")
    assert [known.index for known in machine.gpus] == [2, 1, 0]
    assert [known.pci_bus_id for known in machine.gpus] == ["fffe:01:00.0", "ffff:01:00.0", None]
    reader.close()


LEVELLED = replace(
    MACHINE,
    topology=replace(
        MACHINE.topology, pairs=tuple(replace(pair, level=LinkLevel.PIX) for pair in MACHINE.topology.pairs)
    ),
)
"""Every question about it has an answer."""


class DyingNvml(FakeNvml):
    """After some calls one GPU falls off the bus, or with `gpu` None the whole driver goes."""

    def __init__(self, calls: int, code: int, gpu: int | None) -> None:
        super().__init__(LEVELLED, migs=(MIG,))
        self.left, self.code, self.gpu = calls, code, gpu

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        call = super().__getattr__(symbol)

        def dying(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                for name in SYMBOLS:
                    self.refuse(name, self.code, self.gpu)
            return call(*arguments)

        return dying


@pytest.mark.parametrize(
    ("code", "gpu"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, 1),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, None),
        (pynvml.NVML_ERROR_UNKNOWN, None),
    ],
)
def test_what_goes_in_the_middle_of_a_reading_is_left_out_or_the_reading_fails(code: int, gpu: int | None) -> None:
    """It is asked again soon, and a driver that is well again tells everything."""
    well = FakeNvml(LEVELLED, migs=(MIG,))
    truth = read_facts(NvmlReader(NvmlLibrary(lambda: well)).read(), name="node")
    assert truth.unanswered == 0
    for calls in range(0, len(well.calls) + 1, 5):  # a prime that meets each kind of call
        dying = DyingNvml(calls, code, gpu)
        reader = NvmlReader(NvmlLibrary(partial(next, iter([dying, well]))))
        try:
            reading = read_facts(reader.read(), name="node")
            assert_nothing_invented(reading.machine)
            assert reading.machine == truth.machine or reading.unanswered
        except NvmlError:
            assert gpu is None
        dying.allow()
        dying.left = 1 << 30
        assert read_facts(reader.read(), name="node") == truth
        reader.close()


@pytest.mark.parametrize(("current", "pending"), [(0, 1), (1, 0)])
def test_the_mig_mode_that_is_in_force_counts_not_the_pending_one(current: int, pending: int) -> None:
    def mode(_self: FakeNvml, _handle: object, now: Any, later: Any) -> int:
        now._obj.value, later._obj.value = current, pending
        return 0

    fake = type("Pending", (FakeNvml,), {"_nvmlDeviceGetMigMode": mode})(MACHINE, (MIG,))
    facts = NvmlReader(NvmlLibrary(lambda: fake)).read()
    assert {found.mig_enabled for found in facts.gpus} == {bool(current)}
    assert len(facts.mig_devices) == current


@pytest.mark.parametrize("count", [1, 16, 17, 64])
def test_a_node_has_as_many_gpus_as_the_driver_says(count: int) -> None:
    many = Machine("many", tuple(gpu(n) for n in range(count)), topology_from_matrix(all_linked(count)))
    reader = NvmlReader(NvmlLibrary(lambda: FakeNvml(many)))
    assert [found.index for found in build_machine(reader.read(), name="many").gpus] == list(range(count))
    reader.close()


def all_linked(count: int) -> list[list[str]]:
    return [["X" if a == b else "NV4" for b in range(count)] for a in range(count)]


def test_questions_without_an_answer_are_counted_and_those_that_never_have_one_are_not() -> None:
    fake, errors = FakeNvml(LEVELLED), []
    fake.refuse("nvmlDeviceGetName", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
    fake.refuse("nvmlDeviceGetBrand", pynvml.NVML_ERROR_NOT_SUPPORTED)
    fake.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=2)
    reader = NvmlReader(NvmlLibrary(lambda: fake, lambda call, error: errors.append((call, error))))
    reader.read()
    assert sorted(errors) == [("nvmlDeviceGetName", "UNKNOWN"), ("nvmlDeviceGetUUID", "GPU_IS_LOST")]


def test_the_place_on_the_board_is_asked_where_it_is_wanted() -> None:
    places = (3, None, 8)
    gpus = tuple(replace(gpu, module_id=place) for gpu, place in zip(MACHINE.gpus, places, strict=True))
    fake = FakeNvml(replace(MACHINE, gpus=gpus))
    for wanted, expected in ((False, (None, None, None)), (True, places)):
        reader = NvmlReader(NvmlLibrary(lambda: fake), module_ids=wanted)
        assert tuple(gpu.module_id for gpu in reader.read().gpus) == expected
        assert any(call == "nvmlDeviceGetModuleId" for call in fake.calls) == wanted
        reader.close()
