"""A recorded machine whose GPUs can be divided while it is in use, polled like a driver."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.adapters.recorded.mig import DividedGpu, RecordedMig
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.ports import DocumentStore, GpuGoneError


class RecordedNode:
    """Implements ReadingSource.

    The divisions of its GPUs are in `files`, see RecordedMig: as after a reboot, the MIG devices of the recording do
    not exist. GPUs whose profiles were not recorded stay as recorded.
    """

    def __init__(self, machine: Machine, files: DocumentStore, boot_id: str) -> None:
        self._machine = machine
        self._gpus = {gpu.uuid: gpu for gpu in machine.gpus}
        self._mig = RecordedMig(self._recorded, files, boot_id)

    def read_all(self) -> Reading:
        """Return the machine with its current MIG devices and modes. Raises PermanentError for a broken file."""
        read = [self._mig.as_divided(gpu) if gpu.mig_profiles else self._as_recorded(gpu) for gpu in self._machine.gpus]
        return Reading(
            replace(
                self._machine,
                gpus=tuple(each.gpu for each in read),
                mig_devices=tuple(mig for each in read for mig in each.migs),
                empty_gpu_instances=tuple(instance for each in read for instance in each.empty),
            )
        )

    def doing(self) -> str:
        """Return nothing: files do not hang."""
        return ""

    def close(self) -> None:
        """Nothing is open."""

    def _as_recorded(self, gpu: Gpu) -> DividedGpu:
        return DividedGpu(gpu, tuple(mig for mig in self._machine.mig_devices if mig.parent_uuid == gpu.uuid))

    def _recorded(self, uuid: str) -> Gpu:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise GpuGoneError(f"GPU {uuid} is not one of recorded machine {self._machine.name}")
        return gpu
