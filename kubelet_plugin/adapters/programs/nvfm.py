"""One call of Fabric Manager's library, as a program: its argument is a request, its output an answer, both JSON.

It only needs the standard library, so it starts within a tenth of a second. Layouts, numbers and the order of the calls
come from nv_fm_types.h and nv_fm_agent.h.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

MAX_PARTITIONS: Final = 64
MAX_GPUS: Final = 16

SUCCESS: Final = 0
NOT_SUPPORTED: Final = -3
VERSION_MISMATCH: Final = -6
INTERNET_ADDRESS, UNIX_ADDRESS = 1, 2
"""nvFmApiAddrTypes."""
LIBRARY_IN_USE: Final = -7
"""FM_ST_IN_USE of fmLibInit: it is initialised already."""


class ConnectParams(ctypes.Structure):
    """fmConnectParams_v1."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("address", ctypes.c_char * 256),
        ("timeout_ms", ctypes.c_uint32),
        ("is_unix_socket", ctypes.c_uint32),
    )


class TypedConnectParams(ctypes.Structure):
    """fmConnectParams_v2, the default of newer headers (driver 575)."""

    _fields_ = (*ConnectParams._fields_, ("address_type", ctypes.c_int))


class PartitionGpu(ctypes.Structure):
    """fmFabricPartitionGpuInfo_t."""

    _fields_ = (
        ("physical_id", ctypes.c_uint32),
        ("uuid", ctypes.c_char * 80),
        ("pci_bus_id", ctypes.c_char * 32),
        ("nvlinks", ctypes.c_uint32),
        ("most_nvlinks", ctypes.c_uint32),
        ("line_rate_mbps", ctypes.c_uint32),
    )


class Partition(ctypes.Structure):
    """fmFabricPartitionInfo_t."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("is_active", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("gpus", PartitionGpu * MAX_GPUS),
    )


class PartitionList(ctypes.Structure):
    """fmFabricPartitionList_v2, whose version number is 1."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("most", ctypes.c_uint32),
        ("partitions", Partition * MAX_PARTITIONS),
    )


class ActivePartitions(ctypes.Structure):
    """fmActivatedFabricPartitionList_v1."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("ids", ctypes.c_uint32 * MAX_PARTITIONS),
    )


class UnsupportedPartition(ctypes.Structure):
    """fmUnsupportedFabricPartitionInfo_t."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("physical_ids", ctypes.c_uint32 * MAX_GPUS),
    )


class UnsupportedList(ctypes.Structure):
    """fmUnsupportedFabricPartitionList_v1."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("partitions", UnsupportedPartition * MAX_PARTITIONS),
    )


class _RefusedError(Exception):
    def __init__(self, call: str, code: int) -> None:
        self.call, self.code = call, code
        super().__init__(call, code)


def answer(request: dict[str, Any], load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, Any]:
    """Return the result of a request: `code` with the `call` that returned it, or `error` if the library is unusable.

    `library` and `address` say whom to ask, `timeout_ms` how long to wait for a connection, `work` what to do: `read`,
    `activate` or `deactivate` with a single id in `ids`, `set` with the ids of all active partitions.
    """
    try:
        library = load(request["library"])
        code = library.fmLibInit()
        if code not in (SUCCESS, LIBRARY_IN_USE):
            return {"call": "fmLibInit", "code": code}
    except (OSError, AttributeError) as error:
        return {"error": str(error)}
    try:
        return _connected(library, request)
    except AttributeError as error:
        return {"error": str(error)}
    except _RefusedError as error:
        return {"call": error.call, "code": error.code}
    finally:
        library.fmLibShutdown()


def _connected(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    address, timeout_ms = request["address"].encode(), request["timeout_ms"]
    is_unix_socket = int(address.startswith(b"/"))
    parameters = ConnectParams(_version(ConnectParams), address, timeout_ms, is_unix_socket)
    try:
        _call(library, "fmConnect", ctypes.byref(parameters), ctypes.byref(handle))
    except _RefusedError as error:
        if error.code != VERSION_MISMATCH:
            raise
        kind = UNIX_ADDRESS if is_unix_socket else INTERNET_ADDRESS
        typed = TypedConnectParams(_version(TypedConnectParams, 2), address, timeout_ms, is_unix_socket, kind)
        _call(library, "fmConnect", ctypes.byref(typed), ctypes.byref(handle))
    try:
        return {"code": SUCCESS, **_work(library, handle, request["work"], request.get("ids", []))}
    finally:
        library.fmDisconnect(handle)


def _work(library: Any, handle: ctypes.c_void_p, work: str, ids: Sequence[int]) -> dict[str, Any]:
    if work == "read":
        return _read(library, handle)
    if work == "set":
        active = ActivePartitions(_version(ActivePartitions), len(ids), (ctypes.c_uint32 * MAX_PARTITIONS)(*ids))
        _call(library, "fmSetActivatedFabricPartitions", handle, ctypes.byref(active))
        return {}
    name = {"activate": "fmActivateFabricPartition", "deactivate": "fmDeactivateFabricPartition"}[work]
    _call(library, name, handle, ctypes.c_uint32(ids[0]))
    return {}


def _read(library: Any, handle: ctypes.c_void_p) -> dict[str, Any]:
    supported = PartitionList(_version(PartitionList))
    _call(library, "fmGetSupportedFabricPartitions", handle, ctypes.byref(supported))
    unsupported = UnsupportedList(_version(UnsupportedList))
    if hasattr(library, "fmGetUnsupportedFabricPartitions"):  # not in the library's first releases
        try:
            _call(library, "fmGetUnsupportedFabricPartitions", handle, ctypes.byref(unsupported))
        except _RefusedError as error:
            if error.code != NOT_SUPPORTED:  # this list alone: the first call was answered
                raise
            unsupported.count = 0
    return {
        "partitions": [_partition(each) for each in supported.partitions[: min(supported.count, MAX_PARTITIONS)]],
        "unsupported": [each.id for each in unsupported.partitions[: min(unsupported.count, MAX_PARTITIONS)]],
    }


def _partition(told: Partition) -> dict[str, Any]:
    return {
        "id": told.id,
        "active": bool(told.is_active),
        "gpus": [
            {
                "module": gpu.physical_id,
                "uuid": gpu.uuid.decode("ascii", "replace"),
                "pci": gpu.pci_bus_id.decode("ascii", "replace"),
                "nvlinks": gpu.nvlinks,
                "most_nvlinks": gpu.most_nvlinks,
            }
            for gpu in told.gpus[: min(told.gpu_count, MAX_GPUS)]
        ],
    }


def _call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code != SUCCESS:
        raise _RefusedError(name, code)


def _version(structure: type[ctypes.Structure], number: int = 1) -> int:
    """Return what MAKE_FM_PARAM_VERSION makes."""
    return ctypes.sizeof(structure) | number << 24


def main(request: str, load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """Answer a request on standard output. The library's own output is redirected to standard error: the C library may
    write it as late as at the end of the process.
    """
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        json.dump(answer(json.loads(request), load), output)


if __name__ == "__main__":
    main(sys.argv[1])
