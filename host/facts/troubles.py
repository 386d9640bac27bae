"""What can be wrong with the driver of a node, in words for admins, each with the command that shows or fixes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dracaena.api.errors import TemporaryError


class TroubleKind(enum.Enum):
    """Kinds of trouble. The value is the reason of the Event on the node."""

    LIBRARY_MISSING = "DriverLibraryMissing"
    NOT_LOADED = "DriverNotLoaded"
    VERSION_MISMATCH = "DriverVersionMismatch"
    INIT_FAILED = "DriverInitFailed"
    READING_FAILED = "DriverReadingFailed"
    CONTRADICTION = "DriverReadingContradictory"
    SILENT = "DriverSilent"
    RELEASED = "DriverReleased"
    GPU_MISSING = "GpuMissing"
    DEVICE_SKIPPED = "DeviceSkipped"
    GPUS_UNCLEAR = "GpusUnclear"
    MIG_TAKEN = "MigTaken"
    MIG_LAYOUT = "MigLayoutFailed"
    VGPU_LAYOUT = "VgpuLayoutFailed"
    FABRIC = "FabricNotReady"
    NVLINKS_DOWN = "NvLinksDown"
    SRAM_ERRORS = "GpuSramErrors"
    CONFIDENTIAL_NOT_READY = "ConfidentialNotReady"
    CONFIDENTIAL_MODE = "ConfidentialModeDiffers"
    CONFIDENTIAL_CHANGE = "ConfidentialModeFailed"
    HOOK_TOOL_MISSING = "HookToolMissing"
    GPUS_WITHOUT_CLAIM = "GpusWithoutClaim"
    PASSTHROUGH_REFUSED = "PassthroughRefused"
    HOST_PROCESSES = "HostProcessesHidden"
    NOT_GIVEN_BACK = "GpuNotGivenBack"
    NOT_RESTORED = "GpuNotRestored"
    VGPU_REFUSED = "VgpuRefused"
    FABRIC_MANAGER = "FabricManagerNotReady"
    FABRIC_PARTITION = "FabricPartitionUnclear"


_KERNEL_LOG = "`dmesg | grep -i -e nvrm -e xid`"

MENDING = {
    TroubleKind.LIBRARY_MISSING: "install the driver, or name its folder in driver-root; on the node: "
    "`find / -xdev -name 'libnvidia-ml.so*'`",
    TroubleKind.NOT_LOADED: f"on the node: `modprobe nvidia`, then {_KERNEL_LOG}",
    TroubleKind.VERSION_MISMATCH: "reload the kernel module or restart the node; on the node: "
    "`cat /proc/driver/nvidia/version`, `modinfo -F version nvidia`",
    TroubleKind.INIT_FAILED: f"on the node: `nvidia-smi`, {_KERNEL_LOG}",
    TroubleKind.READING_FAILED: f"on the node: `nvidia-smi -q`, {_KERNEL_LOG}",
    TroubleKind.CONTRADICTION: "on the node: `nvidia-smi -L`, `nvidia-smi topo -m`",
    TroubleKind.SILENT: f"on the node: `nvidia-smi`, {_KERNEL_LOG}, `ps -eo pid,stat,wchan:32,comm | grep ' D'`; a "
    "driver that hangs in the kernel needs a restart of the node",
    TroubleKind.RELEASED: "to give it back: `dracaena driver resume` where it was released, or remove the label",
    TroubleKind.GPU_MISSING: f"on the node: `nvidia-smi -q -i {{subject}}`, {_KERNEL_LOG}; a GPU that is lost needs a "
    "reset (release the driver first) or a restart of the node",
    TroubleKind.DEVICE_SKIPPED: "on the node: `ls -l /dev/nvidia*`, `nvidia-modprobe -c 0 -u`",
    TroubleKind.GPUS_UNCLEAR: "correct `gpus` in the settings of this node; until then the GPUs in question are "
    "neither shared nor divided",
    TroubleKind.MIG_TAKEN: "on the node: `nvidia-smi mig -lgi`",
    TroubleKind.MIG_LAYOUT: "the GPUs stay as they are until that is done; on the node: `nvidia-smi mig -lgi`",
    TroubleKind.VGPU_LAYOUT: "the GPUs stay as they are until that is done; on the node: "
    "`nvidia-smi vgpu -q`, `ls -l /sys/bus/mdev/devices`, `journalctl -u nvidia-vgpu-mgr`",
    TroubleKind.FABRIC: "on the node: `systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A 4 Fabric`",
    TroubleKind.NVLINKS_DOWN: f"on the node: `nvidia-smi nvlink -s -i {{subject}}`, {_KERNEL_LOG}; links that stay "
    "down need a reset of the GPUs at both ends, or service",
    TroubleKind.SRAM_ERRORS: "on the node: `nvidia-smi -q -d ECC -i {subject}`, then NVIDIA's field diagnosis; the GPU "
    "may have to be replaced",
    TroubleKind.CONFIDENTIAL_NOT_READY: "attest them, then on the node: `nvidia-smi conf-compute -srs 1`",
    TroubleKind.CONFIDENTIAL_MODE: "the plugin changes modes where setting cc-mode-tool names NVIDIA's program for it, "
    "while no pod has a GPU; else let NVIDIA's manager do so (label `nvidia.com/cc.mode`), or correct the label; "
    "on the node: `nvidia-smi conf-compute -q`",
    TroubleKind.CONFIDENTIAL_CHANGE: "to try again, remove the label and set it again; "
    "on the node: `nvidia-smi conf-compute -q`, `lspci -nnk -d 10de:`",
    TroubleKind.HOOK_TOOL_MISSING: "install the NVIDIA container toolkit on the host, or name its path in hook-tool; "
    "on the node: `command -v nvidia-cdi-hook nvidia-ctk`",
    TroubleKind.GPUS_WITHOUT_CLAIM: "claims need none of this: say false there, with the GPU operator by "
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=false in toolkit.env; on the node: "
    "`grep -rs nvidia-container-runtime /etc/containerd /etc/crio`",
    TroubleKind.PASSTHROUGH_REFUSED: "on the node: `lspci -nnk -s {subject}`, "
    "`ls /sys/bus/pci/devices/{subject}/iommu_group/devices`",
    TroubleKind.HOST_PROCESSES: "the chart sets `hostPID: true` where `gpus` says `as: passthrough`; set it in the "
    "plugin's DaemonSet if that is deployed in another way",
    TroubleKind.NOT_GIVEN_BACK: "it is tried again every few minutes; on the node: `fuser -v /dev/vfio/*`, "
    "`dmesg | tail -n 50`",
    TroubleKind.NOT_RESTORED: "it is tried again every few minutes",
    TroubleKind.VGPU_REFUSED: "on the node: `nvidia-smi vgpu -q`, `ls -l /sys/bus/mdev/devices`, "
    "`grep . /sys/bus/pci/devices/*/nvidia/current_vgpu_type`",
    TroubleKind.FABRIC_MANAGER: "on the node: `systemctl status nvidia-fabricmanager`, "
    "`grep -v '^#' /usr/share/nvidia/nvswitch/fabricmanager.cfg`",
    TroubleKind.FABRIC_PARTITION: "on the node: `nvidia-smi -q | grep -e 'Module Id' -e 'Bus Id'`, `fmpm -l`",
}
"""What to do; {subject} is what the trouble is about. What holds for only some of a kind is in their text."""


@dataclass(frozen=True, slots=True, order=True)
class Trouble:
    """One thing that is wrong."""

    reason: str
    """A TroubleKind's value."""
    subject: str = ""
    """What it is about, if there may be several: a PCI address, a device."""
    text: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Return what identifies the trouble even if its text changes."""
        return (self.reason, self.subject)

    @property
    def advice(self) -> str:
        """Return the text with what to do about it."""
        return f"{self.text}; {MENDING[TroubleKind(self.reason)].format(subject=self.subject)}"


def trouble(reason: TroubleKind, text: str, subject: str = "") -> Trouble:
    """Return a trouble of a kind."""
    return Trouble(reason.value, subject, text)


class GpuDriverTroubleError(TemporaryError):
    """The driver did not do what it was asked. The text names the call and its result."""

    def __init__(self, message: str, reason: TroubleKind = TroubleKind.READING_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class GpuDriverReleasedError(GpuDriverTroubleError):
    """The driver was released on request: it is not called until it is given back."""

    def __init__(self, message: str) -> None:
        super().__init__(message, TroubleKind.RELEASED)
