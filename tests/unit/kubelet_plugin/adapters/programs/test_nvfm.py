"""The library's structures and calls, against a library that reads and writes them by the header's offsets."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dracaena.kubelet_plugin.adapters.programs import nvfm
from support.fake_fabric_manager import (
    DOWN,
    GENERIC_ERROR,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    FakeFabricManager,
    FakeLibrary,
)

READ = {"library": "libnvfm.so.1", "address": "/run/fm.sock", "timeout_ms": 1000, "work": "read"}


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary(FakeFabricManager())


def answer(library: FakeLibrary, work: str, *ids: int) -> dict[str, Any]:
    return nvfm.answer({**READ, "work": work, "ids": list(ids)}, lambda _path: library)


def test_structures_have_the_sizes_of_the_header() -> None:
    sizes = {
        nvfm.ConnectParams: 268,
        nvfm.TypedConnectParams: 272,
        nvfm.PartitionGpu: 128,
        nvfm.Partition: 2060,
        nvfm.PartitionList: 131852,
        nvfm.ActivePartitions: 264,
        nvfm.UnsupportedPartition: 72,
        nvfm.UnsupportedList: 4616,
    }
    assert {each: ctypes.sizeof(each) for each in sizes} == sizes


def test_partitions_are_read_with_their_gpus(library: FakeLibrary) -> None:
    library.manager.unsupported = [0]
    library.manager.active = [3]
    library.manager.named = {1: ("GPU-1", "00000000:1B:00.0")}
    found = answer(library, "read")
    assert (found["code"], found["unsupported"], len(found["partitions"])) == (0, [0], 14)
    by_id = {each["id"]: each for each in found["partitions"]}
    assert by_id[3] == {
        "id": 3,
        "active": True,
        "gpus": [
            {"module": 1, "uuid": "GPU-1", "pci": "00000000:1B:00.0", "nvlinks": 18, "most_nvlinks": 18},
            {"module": 3, "uuid": "", "pci": "00000000:00:00.0", "nvlinks": 18, "most_nvlinks": 18},
        ],
    }
    assert [gpu["module"] for gpu in by_id[2]["gpus"]] == [5, 6, 7, 8]
    assert by_id[14]["gpus"][0]["most_nvlinks"] == 0
    assert library.address == "/run/fm.sock"
    assert library.calls == ["fmDisconnect", "fmLibShutdown"]


def test_partitions_are_activated_deactivated_and_told(library: FakeLibrary) -> None:
    assert answer(library, "activate", 3) == {"code": 0}
    assert library.manager.active == [3]
    library.initialised = False
    assert answer(library, "deactivate", 3) == {"code": 0}
    assert library.manager.active == []
    library.manager.restart(resuming=True)
    assert answer(library, "set", 4, 5) == {"code": 0}  # initialised already, which is no failure
    assert library.manager.active == [4, 5]
    library.manager.restart(resuming=True)
    assert answer(library, "set") == {"code": 0}
    assert library.manager.active == []


def test_a_refusal_names_the_call(library: FakeLibrary) -> None:
    library.manager.active = [0]
    assert answer(library, "activate", 3) == {"call": "fmActivateFabricPartition", "code": -7}
    assert library.calls == ["fmDisconnect", "fmLibShutdown"]
    library.manager.life = DOWN
    assert answer(library, "read") == {"call": "fmConnect", "code": -9}


def test_tcp_is_told_from_a_socket(library: FakeLibrary) -> None:
    nvfm.answer({**READ, "address": "127.0.0.1:6666"}, lambda _path: library)
    assert library.address == "127.0.0.1:6666"


@pytest.mark.parametrize("address", ["/run/fm.sock", "127.0.0.1:6666"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_library_that_knows_one_form_of_address_alone_is_given_that(
    library: FakeLibrary, version: int, address: str
) -> None:
    library.connects_by = (version,)
    assert nvfm.answer({**READ, "address": address}, lambda _path: library)["code"] == 0
    assert library.address == address


def test_a_library_that_knows_neither_says_so(library: FakeLibrary) -> None:
    library.connects_by = ()
    assert answer(library, "read") == {"call": "fmConnect", "code": VERSION_MISMATCH}


def test_a_library_without_the_list_of_the_unsupported_has_none(library: FakeLibrary) -> None:
    class Old:
        def __getattr__(self, name: str) -> Any:
            if name == "fmGetUnsupportedFabricPartitions":
                raise AttributeError(name)
            return getattr(library, name)

    assert nvfm.answer(READ, lambda _path: Old())["unsupported"] == []


def test_where_that_list_is_not_supported_nothing_is_unsupported(library: FakeLibrary) -> None:
    library.manager.fails = {"fmGetUnsupportedFabricPartitions": NOT_SUPPORTED}
    found = answer(library, "read")
    assert (found["code"], found["unsupported"], len(found["partitions"])) == (0, [], 15)
    library.initialised = False
    library.manager.fails = {"fmGetUnsupportedFabricPartitions": GENERIC_ERROR}
    assert answer(library, "read") == {"call": "fmGetUnsupportedFabricPartitions", "code": GENERIC_ERROR}


def test_what_is_no_library_of_fabric_manager_is_told() -> None:
    assert "fmLibInit" in nvfm.answer({**READ, "library": "libc.so.6"})["error"]
    assert "nowhere.so" in nvfm.answer({**READ, "library": "/nowhere.so"})["error"]
