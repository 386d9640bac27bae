"""Calls Fabric Manager through its library, in a process of its own for each call: the library may wait forever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dracaena.host.adapters.gpu_driver.root import LIBRARY_FOLDERS, GpuDriverRoot
from dracaena.kubelet_plugin.adapters.programs import nvfm
from dracaena.kubelet_plugin.adapters.programs.child_process import printed_by
from dracaena.kubelet_plugin.discovery.fabric_partitions import FabricAnswer, ToldGpu, ToldPartition
from dracaena.kubelet_plugin.ports import FabricCode, FabricManagerError

LIBRARIES: Final = ("libnvfm.so.1", "libnvfm.so")

CHANGE_S: Final = 10.0
"""Longest that activating or deactivating a partition may take. It resets the links of its GPUs, which takes some
seconds; kubelet gives a call 45 s (fabric_partitions.BEGIN_S)."""
TALK_S: Final = 5.0
"""Longest that any other call may take: an answer from memory, after a process was started for it."""
CONNECT_MS: Final = 2000
"""Longest that the library may wait for a connection. Fabric Manager is a process of the same node."""

PROGRAM: Final = (sys.executable, "-I", "-S", nvfm.__file__)

_NAMES: Final = {
    -1: "FM_ST_BADPARAM", -2: "FM_ST_GENERIC_ERROR", -3: "FM_ST_NOT_SUPPORTED", -4: "FM_ST_UNINITIALIZED",
    -5: "FM_ST_TIMEOUT", -6: "FM_ST_VERSION_MISMATCH", -7: "FM_ST_IN_USE", -8: "FM_ST_NOT_CONFIGURED",
    -9: "FM_ST_CONNECTION_NOT_VALID", -10: "FM_ST_NVLINK_ERROR", -11: "FM_ST_RESOURCE_BAD",
    -12: "FM_ST_RESOURCE_IN_USE", -13: "FM_ST_RESOURCE_NOT_IN_USE", -14: "FM_ST_RESOURCE_EXHAUSTED",
    -15: "FM_ST_RESOURCE_NOT_READY", -16: "FM_ST_PARTITION_EXISTS", -17: "FM_ST_PARTITION_ID_IN_USE",
    -18: "FM_ST_PARTITION_ID_NOT_IN_USE", -19: "FM_ST_PARTITION_NAME_IN_USE", -20: "FM_ST_PARTITION_NAME_NOT_IN_USE",
    -21: "FM_ST_PARTITION_ID_NAME_MISMATCH", -22: "FM_ST_NOT_READY", -23: "FM_ST_RESOURCE_USED_IN_THIS_PARTITION",
    -24: "FM_ST_RESOURCE_USED_IN_ANOTHER_PARTITION", -25: "FM_ST_PARTITION_MISWIRED_TRUNKS",
    -26: "FM_ST_PARTITION_INSUFFICIENT_TRUNKS", -27: "FM_ST_PARTITION_MISSING_SWITCHES",
    -28: "FM_ST_PARTITION_NETWORK_CONFIG_ERROR", -29: "FM_ST_PARTITION_ROUTE_PROGRAMMING_ERROR",
}  # fmt: skip
"""fmReturn_t, nv_fm_types.h; those below -10 are in the headers of driver 575 and later."""

_OTHER_SOCKET: Final = (
    ". Fabric Manager answers every question so on a socket that is not for such questions: `fabric-manager-address` "
    "must be what fabricmanager.cfg has as FM_CMD_UNIX_SOCKET_PATH, or as FM_CMD_BIND_INTERFACE and FM_CMD_PORT_NUMBER"
)


class _GpuAnswer(msgspec.Struct):
    module: int
    uuid: str
    pci: str
    nvlinks: int
    most_nvlinks: int


class _PartitionAnswer(msgspec.Struct):
    id: int
    active: bool
    gpus: list[_GpuAnswer]


class _Answer(msgspec.Struct):
    code: int = 0
    call: str = ""
    error: str = ""
    partitions: list[_PartitionAnswer] = []
    unsupported: list[int] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)  # inspected by the thread that imports: see kube.client


class FabricManagerLibrary:
    """Implements ports.FabricManager. From any thread."""

    def __init__(
        self,
        address: str,
        *,
        gpu_driver_root: str = "/",
        library: str = "",
        program: Sequence[str] = PROGRAM,
        change_s: float = CHANGE_S,
        talk_s: float = TALK_S,
    ) -> None:
        """`address` is Fabric Manager's Unix socket as this process sees it, or `host:port`. `library` is a file, as
        this process sees it; empty: searched below `gpu_driver_root` at each call. `program` is what is started.
        """
        self._address = address
        self._root = gpu_driver_root
        self._library = library
        self._program = tuple(program)
        self._change_s, self._talk_s = change_s, talk_s

    def read(self) -> FabricAnswer:
        """See FabricManager."""
        answer = self._ask("read")
        return FabricAnswer(
            tuple(
                ToldPartition(
                    each.id,
                    each.active,
                    tuple(ToldGpu(gpu.module, gpu.uuid, gpu.pci, gpu.nvlinks, gpu.most_nvlinks) for gpu in each.gpus),
                )
                for each in answer.partitions
            ),
            frozenset(answer.unsupported),
        )

    def activate(self, partition: int) -> None:
        """See FabricManager."""
        self._ask("activate", partition)

    def deactivate(self, partition: int) -> None:
        """See FabricManager."""
        self._ask("deactivate", partition)

    def set_active(self, partitions: Sequence[int]) -> None:
        """See FabricManager."""
        self._ask("set", *partitions)

    def _ask(self, work: str, *ids: int) -> _Answer:
        request = {
            "library": self._found(),
            "address": self._address,
            "timeout_ms": CONNECT_MS,
            "work": work,
            "ids": list(ids),
        }
        answer = self._answer(request)
        if answer.error:
            raise FabricManagerError(f"Fabric Manager's library cannot be used: {answer.error}")
        if answer.code != FabricCode.SUCCESS:
            name = _NAMES.get(answer.code, str(answer.code))
            hint = _OTHER_SOCKET if work == "read" and answer.code == FabricCode.UNINITIALIZED else ""
            raise FabricManagerError(f"Fabric Manager at {self._address}: {answer.call} says {name}{hint}", answer.code)
        return answer

    def _found(self) -> str:
        if self._library:
            return self._library
        root = GpuDriverRoot(self._root)
        for name in LIBRARIES:
            path = root.library(name)
            if path is not None:
                return str(root.on_disk(path))
        raise FabricManagerError(
            f"no {LIBRARIES[0]} below {self._root} (searched {', '.join(LIBRARY_FOLDERS)}): install NVIDIA's package "
            "of Fabric Manager's library on the node, of the driver's version, or name the file in "
            "`fabric-manager-library`"
        )

    def _answer(self, request: dict[str, Any]) -> _Answer:
        what = f"Fabric Manager at {self._address}, asked to {request['work']} {request['ids'] or 'its partitions'},"
        limit_s = self._change_s if request["work"] in ("activate", "deactivate") else self._talk_s
        try:
            printed, status = printed_by([*self._program, json.dumps(request)], limit_s)
        except OSError as error:
            raise FabricManagerError(f"{what} cannot be: no process can be started ({error.strerror})") from error
        except subprocess.TimeoutExpired:
            raise FabricManagerError(
                f"{what} has not answered in {limit_s:g} s; on the node: `systemctl status nvidia-fabricmanager`"
            ) from None
        try:
            return _ANSWER.decode(printed)
        except (msgspec.DecodeError, ValueError) as error:
            raise FabricManagerError(
                f"{what} gave no answer that can be read (exit status {status}): its library may be broken, "
                "or of another version"
            ) from error
