"""The facts of all GPUs through NVML. A refused question leaves its field empty and is recorded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ctypes import byref
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

import pynvml

from dracaena.api.mig_geometry import MigProfile
from dracaena.host.adapters.nvml.library import (
    GPU_DRIVER,
    NO_TEXT,
    NvmlError,
    NvmlLibrary,
    error_name,
)
from dracaena.host.adapters.nvml.mig import MigReader
from dracaena.host.facts.machine import (
    ConfidentialFacts,
    FabricFacts,
    GpuFacts,
    LeftOut,
    MachineFacts,
    NvLinkFacts,
    PairLevel,
)
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.nvml.mig_profiles import MigProfileReader
from dracaena.kubelet_plugin.adapters.nvml.vgpu_types import VgpuTypeReader
from dracaena.kubelet_plugin.discovery.vm.vgpus import VgpuTypeFacts

T = TypeVar("T")

_NO_SUCH_LINK = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT})
"""nvmlDeviceGetNvLinkState: the GPU has no NVLink, or none of this number."""


@dataclass(frozen=True, slots=True)
class _AnsweringGpu:
    """A GPU that answers."""

    handle: Any
    facts: GpuFacts


class NvmlReader:
    """Reads everything. One thread at a time."""

    def __init__(self, library: NvmlLibrary, *, mig_profiles: bool = False, module_ids: bool = False) -> None:
        """`mig_profiles`: also ask how each GPU can be divided, until that is known; `module_ids`: also ask where each
        is on its board.
        """
        self._library = library
        self._module_ids = module_ids
        self._profiles: dict[str, tuple[MigProfile, ...]] | None = {} if mig_profiles else None
        self._profiles_of: str | None = None
        """Version of the driver that told them."""
        self._left_out: dict[LeftOut, None] = {}

    def read(self) -> MachineFacts:
        """Return the facts without what sysfs adds. Cost: some hundred calls of microseconds each.

        Raises NvmlError if the driver is not ready, does not report how many GPUs there are, or none of them answers;
        then NVML is closed, because the handles may be those of a driver that was reloaded. If only some GPUs do not
        answer, they are left out and recorded; NVML stays open, for the events of the others.
        """
        self._left_out = {}
        try:
            self._library.open()
            return self._read()
        except NvmlError:
            self._library.close()
            raise

    def vgpu_types(self, gpu: GpuFacts) -> Mapping[str, VgpuTypeFacts]:
        """Return the vGPU types that the driver knows for a GPU that it listed just now, by number; none if it does not
        report them. Cost: three calls per type; a GPU has up to 128 types.
        """
        return VgpuTypeReader(self._ask, f"GPU {gpu.index}", gpu.index).read()

    @property
    def library(self) -> NvmlLibrary:
        """The library that is used for reading."""
        return self._library

    def close(self) -> None:
        """Close the driver, so that its kernel module can be unloaded."""
        self._library.close()

    def _read(self) -> MachineFacts:
        version = self._ask(GPU_DRIVER, pynvml.nvmlSystemGetDriverVersion)
        self._forget_profiles_of_another(version)
        gpus = self._gpus()
        divided = [(self._mig_reader(gpu), gpu.facts.mig_profiles) for gpu in gpus if gpu.facts.mig_enabled]
        mig_devices = [(reader, profiles, reader.read()) for reader, profiles in divided]
        return MachineFacts(
            gpus=tuple(gpu.facts for gpu in gpus),
            pair_levels=self._pair_levels(gpus),
            mig_devices=tuple(mig for _, _, found in mig_devices for mig in found),
            empty_gpu_instances=tuple(
                each for reader, profiles, found in mig_devices for each in reader.empty_gpu_instances(profiles, found)
            ),
            driver_version=version,
            cuda_driver_version=self._cuda_driver_version(),
            confidential=self._confidential(),
            left_out=tuple(sorted(self._left_out)),
        )

    def _gpus(self) -> list[_AnsweringGpu]:
        count = self._library.needed("how many GPUs there are", pynvml.nvmlDeviceGetCount)
        gpus, refusals = [], []
        for index in range(count):
            try:
                gpus.append(self._gpu(index))
            except NvmlError as error:
                refusals.append(error)
                reason = error_name(pynvml.NVMLError(error.code)) if error.code is not None else NO_TEXT
                self._left_out[LeftOut(f"GPU {index}", error.call, reason)] = None
        if refusals and not gpus:
            raise refusals[0]
        return gpus

    def _gpu(self, index: int) -> _AnsweringGpu:
        """Read one GPU. Raises NvmlError without handle or UUID: then it cannot be a device."""
        device = f"GPU {index}"
        handle = self._library.needed(f"the handle of {device}", pynvml.nvmlDeviceGetHandleByIndex, index)
        identity: str = self._library.needed(f"the UUID of {device}", pynvml.nvmlDeviceGetUUID, handle)
        memory = self._ask(device, pynvml.nvmlDeviceGetMemoryInfo, handle)
        mig_mode = self._ask(device, pynvml.nvmlDeviceGetMigMode, handle)
        memory_bytes = int(memory.total) if memory is not None else None
        facts = GpuFacts(
            index=index,
            uuid=identity,
            address=self._address(device, pynvml.nvmlDeviceGetPciInfo, handle),
            minor=self._ask(device, pynvml.nvmlDeviceGetMinorNumber, handle),
            product_name=self._ask(device, pynvml.nvmlDeviceGetName, handle),
            brand=self._ask(device, pynvml.nvmlDeviceGetBrand, handle),
            architecture=self._ask(device, pynvml.nvmlDeviceGetArchitecture, handle),
            cuda_compute_capability=self._ask(device, pynvml.nvmlDeviceGetCudaComputeCapability, handle),
            memory_bytes=memory_bytes,
            pcie_generation=self._ask(device, pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=self._ask(device, pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            nvlinks=self._nvlinks(device, handle),
            fabric=self._fabric(device, handle),
            mig_enabled=mig_mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE if mig_mode is not None else None,
            mig_profiles=self._mig_profiles(device, handle, identity, memory_bytes) if mig_mode is not None else (),
            module_id=self._ask(device, pynvml.nvmlDeviceGetModuleId, handle) if self._module_ids else None,
        )
        return _AnsweringGpu(handle, facts)

    def _forget_profiles_of_another(self, version: str | None) -> None:
        """Forget the profiles of another driver, whose numbers differ. A single reading may lack the version."""
        if self._profiles is None or version is None or version == self._profiles_of:
            return
        self._profiles.clear()
        self._profiles_of = version

    def _mig_profiles(
        self, device: str, handle: Any, identity: str, memory_bytes: int | None
    ) -> tuple[MigProfile, ...]:
        """Return how a GPU can be divided. What a driver once reported is kept: it may report it only in MIG mode."""
        if self._profiles is None:
            return ()
        if identity not in self._profiles:
            left_out = len(self._left_out)
            found = MigProfileReader(self._ask, device, handle, memory_bytes).read()
            if not found or len(self._left_out) > left_out:
                return found
            self._profiles[identity] = found
        return self._profiles[identity]

    def _nvlinks(self, device: str, handle: Any) -> tuple[NvLinkFacts, ...] | None:
        links = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                state = self._library.call(device, pynvml.nvmlDeviceGetNvLinkState, handle, link)
            except pynvml.NVMLError as error:
                if error.value in _NO_SUCH_LINK:
                    continue
                self._remember(device, pynvml.nvmlDeviceGetNvLinkState, error_name(error))
                if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    return None
                links.append(NvLinkFacts(link, active=None))
                continue
            facts = NvLinkFacts(link, active=state == pynvml.NVML_FEATURE_ENABLED)
            links.append(self._with_other_end(device, handle, facts) if facts.active else facts)
        return tuple(links)

    def _with_other_end(self, device: str, handle: Any, link: NvLinkFacts) -> NvLinkFacts:
        remote_type = self._ask(device, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link.link)
        at_switch = remote_type == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        return replace(
            link,
            remote_type=remote_type,
            # Switches that belong to another machine (fabric trays, guests of a hypervisor) have no address here.
            remote_address=None
            if at_switch
            else self._address(device, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link.link),
            version=self._ask(device, pynvml.nvmlDeviceGetNvLinkVersion, handle, link.link),
        )

    def _fabric(self, device: str, handle: Any) -> FabricFacts | None:
        """Use the newer call, or the first one if the driver is older than that."""
        info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
        if self._ask(device, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info)) is None:
            info = pynvml.c_nvmlGpuFabricInfo_t()
            if self._ask(device, pynvml.nvmlDeviceGetGpuFabricInfo, handle, byref(info)) is None:
                return None
        return FabricFacts(
            state=int(info.state),
            status=int(info.status),
            cluster_uuid=str(uuid.UUID(bytes=bytes(info.clusterUuid))),
            clique_id=int(info.cliqueId),
        )

    def _pair_levels(self, gpus: Sequence[_AnsweringGpu]) -> tuple[PairLevel, ...]:
        found = []
        for one, other in combinations(gpus, 2):
            device = f"GPU {one.facts.index}"
            level = self._ask(device, pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle)
            if level is not None:
                found.append(PairLevel(one.facts.uuid, other.facts.uuid, level))
        return tuple(found)

    def _mig_reader(self, gpu: _AnsweringGpu) -> MigReader:
        return MigReader(self._ask, f"GPU {gpu.facts.index}", gpu.handle, gpu.facts.uuid)

    def _confidential(self) -> ConfidentialFacts:
        capabilities = self._ask(GPU_DRIVER, pynvml.nvmlSystemGetConfComputeCapabilities)
        state = self._ask(GPU_DRIVER, pynvml.nvmlSystemGetConfComputeState)
        return ConfidentialFacts(
            gpus_capable=None if capabilities is None else int(capabilities.gpusCaps),
            feature=None if state is None else int(state.ccFeature),
            dev_tools=None if state is None else int(state.devToolsMode),
        )

    def _cuda_driver_version(self) -> int | None:
        version = self._ask(GPU_DRIVER, pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return version if version is not None else self._ask(GPU_DRIVER, pynvml.nvmlSystemGetCudaDriverVersion)

    def _address(self, device: str, call: Callable[..., Any], *arguments: Any) -> PciAddress | None:
        info = self._ask(device, call, *arguments)
        try:
            address = PciAddress.parse(info.busId) if info is not None else None
        except UnicodeDecodeError:  # pynvml decodes texts of a structure when they are read
            address = None
        if info is not None and address is None:
            self._remember(device, call, NO_TEXT)
        return address

    def _ask(
        self, device: str, call: Callable[..., T], *arguments: Any, expected: AbstractSet[int] = frozenset()
    ) -> T | None:
        """Return the answer of one call. A refusal gives None, and is recorded unless its code is an expected one."""
        return self._library.ask(device, call, *arguments, expected=expected, refused=self._leave_out)

    def _leave_out(self, question: LeftOut, _code: int | None) -> None:
        self._left_out[question] = None

    def _remember(self, device: str, call: Callable[..., Any], reason: str) -> None:
        self._left_out[LeftOut(device, call.__name__, reason)] = None
        self._library.note(call.__name__, reason)
