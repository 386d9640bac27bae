"""Fabric Manager in Python: what it answers, by NVIDIA's guide, and what stays active when who asked is gone.

As the library (FakeLibrary) it reads and writes structures byte by byte, by the offsets of nv_fm_types.h, and so does
not share a mistake with ours. Run as a program, in place of adapters/programs/nvfm.py, it keeps its state in a file.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dracaena.kubelet_plugin.adapters.programs import nvfm

HGX_H100: Final = {
    0: (1, 2, 3, 4, 5, 6, 7, 8), 1: (1, 2, 3, 4), 2: (5, 6, 7, 8), 3: (1, 3), 4: (2, 4), 5: (5, 7), 6: (6, 8),
    **{6 + module: (module,) for module in range(1, 9)},
}  # fmt: skip
"""Default partitions of HGX H100: id → module ids."""

SUCCESS, BADPARAM, GENERIC_ERROR, NOT_SUPPORTED, UNINITIALIZED = 0, -1, -2, -3, -4
TIMEOUT, VERSION_MISMATCH, IN_USE, NOT_CONFIGURED, CONNECTION_NOT_VALID, NVLINK_ERROR = -5, -6, -7, -8, -9, -10

RESOURCE_IN_USE, PARTITION_ID_NOT_IN_USE, NOT_READY = -12, -18, -22
NV_FM_API_ADDR_TYPE_INET, NV_FM_API_ADDR_TYPE_UNIX = 1, 2

RUNNING, STARTING, WAITING, DOWN = "running", "starting", "waiting", "down"
"""WAITING: started anew in its restart mode, it wants to be told which partitions are active."""


class SilentError(Exception):
    """It does not answer."""


@dataclass
class FakeFabricManager:
    """One Fabric Manager. Answers are fmReturn_t."""

    partitions: dict[int, tuple[int, ...]] = field(default_factory=lambda: dict(HGX_H100))
    nvlinks: int = 18
    shared: bool = True
    life: str = RUNNING
    active: list[int] = field(default_factory=list)
    """Which the switches link, whatever it remembers."""
    unsupported: list[int] = field(default_factory=list)
    named: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Module id → UUID and PCI address, as on A100; from H100 on it tells neither."""
    fails: dict[str, int] = field(default_factory=dict)
    """Call → what it answers, and nothing else happens."""
    fails_after: dict[str, int] = field(default_factory=dict)
    """Call → what it answers though it did what it was asked to."""
    silent: list[str] = field(default_factory=list)
    """Calls that get no answer and have no effect."""
    late: list[str] = field(default_factory=list)
    """Calls that get no answer and take effect before the next one."""
    pending: list[int] = field(default_factory=list)
    """Partitions whose activation takes effect before the next call."""

    def restart(self, *, resuming: bool) -> None:
        """Start anew, in its restart mode or from the beginning."""
        self.pending = []
        self.life = WAITING if resuming else RUNNING
        if not resuming:
            self.active = []

    def connect(self) -> int:
        self._begin("fmConnect")
        return CONNECTION_NOT_VALID if self.life == DOWN else SUCCESS

    def supported(self) -> tuple[int, list[int]]:
        code = self._begin("fmGetSupportedFabricPartitions") or self._ready()
        return code, sorted(set(self.partitions) - set(self.unsupported)) if code == SUCCESS else []

    def activate(self, partition: int) -> int:
        code = self._begin("fmActivateFabricPartition") or self._ready()
        if code == SUCCESS:
            code = self._why_not(partition)
        if code != SUCCESS:
            return code
        if "fmActivateFabricPartition" in self.late:
            self.pending.append(partition)
            raise SilentError
        self.active.append(partition)
        return self.fails_after.get("fmActivateFabricPartition", SUCCESS)

    def deactivate(self, partition: int) -> int:
        code = self._begin("fmDeactivateFabricPartition") or self._ready()
        if code != SUCCESS:
            return code
        if partition not in self.partitions:
            return BADPARAM
        if partition not in self.active:
            return UNINITIALIZED
        self.active.remove(partition)
        return self.fails_after.get("fmDeactivateFabricPartition", SUCCESS)

    def set_active(self, partitions: Sequence[int]) -> int:
        code = self._begin("fmSetActivatedFabricPartitions")
        if code != SUCCESS:
            return code
        if self.life != WAITING:
            return NOT_CONFIGURED if self.life == STARTING else NOT_SUPPORTED
        if any(partition not in self.partitions for partition in partitions):
            return BADPARAM
        self.active, self.life = list(partitions), RUNNING
        return SUCCESS

    def _begin(self, call: str) -> int:
        for partition in self.pending:
            if self._why_not(partition) == SUCCESS:
                self.active.append(partition)
        self.pending = []
        if call in self.silent:
            raise SilentError
        return self.fails.get(call, SUCCESS)

    def _ready(self) -> int:
        if not self.shared:
            return NOT_SUPPORTED
        return NOT_CONFIGURED if self.life in (STARTING, WAITING) else SUCCESS

    def _why_not(self, partition: int) -> int:
        if partition not in self.partitions or partition in self.unsupported:
            return BADPARAM
        busy = {module for each in self.active for module in self.partitions[each]}
        return IN_USE if busy & set(self.partitions[partition]) else SUCCESS


class FakeLibrary:
    """libnvfm.so.1 in front of it. Sizes: fmConnectParams_v1 268 bytes, fmConnectParams_v2 272,
    fmFabricPartitionGpuInfo_t 128, fmFabricPartitionInfo_t 2060, fmUnsupportedFabricPartitionInfo_t 72; lists have 64.
    """

    def __init__(self, manager: FakeFabricManager) -> None:
        self.manager = manager
        self.calls: list[str] = []
        self.address = ""
        self.initialised = False
        self.connects_by: tuple[int, ...] = (1, 2)
        """Versions of fmConnectParams that it knows."""

    def fmLibInit(self) -> int:  # noqa: N802 - the library's name
        if self.initialised:
            return IN_USE
        self.initialised = True
        return SUCCESS

    def fmLibShutdown(self) -> int:  # noqa: N802
        self.calls.append("fmLibShutdown")
        return SUCCESS

    def fmConnect(self, parameters: Any, handle: Any) -> int:  # noqa: N802
        version, address, timeout_ms, is_unix = struct.unpack("<I256sII", _read(parameters, 268))
        if version not in [{1: 268, 2: 272}[number] | number << 24 for number in self.connects_by]:
            return VERSION_MISMATCH
        if version >> 24 == 2:
            (kind,) = struct.unpack("<I", _read(parameters, 272)[268:])
            assert kind == (NV_FM_API_ADDR_TYPE_UNIX if is_unix else NV_FM_API_ADDR_TYPE_INET)
        self.address = address.rstrip(b"\0").decode()
        assert timeout_ms > 0
        assert is_unix == self.address.startswith("/")
        _write(handle, 0, struct.pack("<Q", 0xF00D))
        return self.manager.connect()

    def fmDisconnect(self, handle: Any) -> int:  # noqa: N802
        assert handle.value == 0xF00D
        self.calls.append("fmDisconnect")
        return SUCCESS

    def fmGetSupportedFabricPartitions(self, handle: Any, found: Any) -> int:  # noqa: N802
        assert handle.value == 0xF00D
        if _read(found, 4) != struct.pack("<I", 131852 | 1 << 24):
            return VERSION_MISMATCH
        code, ids = self.manager.supported()
        _write(found, 4, struct.pack("<II", len(ids), len(self.manager.partitions)))
        for place, number in enumerate(ids):
            modules = self.manager.partitions[number]
            gpus = b"".join(self._gpu(module, len(modules)) for module in modules)
            head = struct.pack("<III", number, number in self.manager.active, len(modules))
            _write(found, 12 + place * 2060, head + gpus)
        return code

    def fmGetUnsupportedFabricPartitions(self, handle: Any, found: Any) -> int:  # noqa: N802
        if _read(found, 4) != struct.pack("<I", 4616 | 1 << 24):
            return VERSION_MISMATCH
        code = self.manager.fails.get("fmGetUnsupportedFabricPartitions", SUCCESS)
        if code != SUCCESS:
            return code
        _write(found, 4, struct.pack("<I", len(self.manager.unsupported)))
        for place, number in enumerate(self.manager.unsupported):
            modules = self.manager.partitions[number]
            _write(found, 8 + place * 72, struct.pack(f"<II{len(modules)}I", number, len(modules), *modules))
        return SUCCESS

    def fmActivateFabricPartition(self, handle: Any, partition: Any) -> int:  # noqa: N802
        return self.manager.activate(partition.value)

    def fmDeactivateFabricPartition(self, handle: Any, partition: Any) -> int:  # noqa: N802
        return self.manager.deactivate(partition.value)

    def fmSetActivatedFabricPartitions(self, handle: Any, active: Any) -> int:  # noqa: N802
        version, count = struct.unpack("<II", _read(active, 8))
        if version != 264 | 1 << 24:
            return VERSION_MISMATCH
        return self.manager.set_active(struct.unpack(f"<{count}I", _read(active, 8 + 4 * count)[8:]))

    def _gpu(self, module: int, together: int) -> bytes:
        uuid, address = self.manager.named.get(module, ("", "00000000:00:00.0"))
        nvlinks = 0 if together == 1 else self.manager.nvlinks
        return struct.pack("<I80s32sIII", module, uuid.encode(), address.encode(), nvlinks, nvlinks, 26562)


def _address(argument: Any) -> int:
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


def _read(argument: Any, count: int) -> bytes:
    return ctypes.string_at(_address(argument), count)


def _write(argument: Any, offset: int, data: bytes) -> None:
    ctypes.memmove(_address(argument) + offset, data, len(data))


def save(manager: FakeFabricManager, file: Path) -> None:
    file.write_text(json.dumps(dataclasses.asdict(manager)), encoding="ascii")


def load(file: Path) -> FakeFabricManager:
    state = json.loads(file.read_text(encoding="ascii"))
    state["partitions"] = {int(number): tuple(modules) for number, modules in state["partitions"].items()}
    state["named"] = {int(module): tuple(names) for module, names in state["named"].items()}
    return FakeFabricManager(**state)


def main(file: Path, request: str) -> None:
    manager = load(file)
    try:
        nvfm.main(request, lambda _path: _talkative(manager))
    except SilentError:
        save(manager, file)
        time.sleep(600)
        return
    save(manager, file)


def _talkative(manager: FakeFabricManager) -> FakeLibrary:
    """Print two lines, of which the C library keeps one until the process ends."""
    c_library = ctypes.CDLL(None)
    c_library.puts(b"a line of the library's")
    c_library.fflush(None)
    c_library.puts(b"and another")
    return FakeLibrary(manager)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
