from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.api.machine_json import decode_machine, encode_machine
from support.machines import divided_machine, machines, mig_uuid

UUIDS = ("GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002")


def document(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "version": 1,
        "name": "two",
        "gpus": [{"uuid": UUIDS[0], "index": 0}, {"uuid": UUIDS[1], "index": 1}],
        "levels": ["X PIX", "PIX X"],
        "nvlinks": ["X 2", "2 X"],
        "numa_nodes": [0, None],
    }
    return plain | changes


def gpus(**changes: Any) -> list[dict[str, Any]]:
    return [{"uuid": UUIDS[0], "index": 0}, {"uuid": UUIDS[1], "index": 1} | changes]


@given(machines())
def test_machine_comes_back_as_it_went_in(machine: Machine) -> None:
    assert decode_machine(encode_machine(machine)) == machine


def test_one_gpu_and_one_row_stand_on_one_line() -> None:
    text = encode_machine(decode_machine(json.dumps(document()).encode())).decode()
    assert '    {"uuid": "GPU-00000000-0000-4000-8000-000000000001", "index": 0},\n' in text
    assert '  "levels": [\n    "X   PIX",\n    "PIX X"\n  ],\n' in text
    assert '  "numa_nodes": [0, null],\n' in text


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"version": "1"}, r"\$\.version"),
        ({"colour": "red"}, "colour"),
        ({"name": 1}, r"\$\.name"),
        ({"gpus": gpus(colour="red")}, r"unknown key 'colour' - at `\$\.gpus\[1\]`"),
        ({"gpus": gpus(index="1")}, r"\$\.index.*\$\.gpus\[1\]"),
        ({"gpus": gpus(index=-1)}, r"\$\.gpus\[1\]\.index"),
        ({"gpus": gpus(uuid="GPU-1")}, r"\$\.gpus\[1\]\.uuid"),
        ({"gpus": gpus(uuid=UUIDS[0])}, "share one uuid"),
        ({"gpus": gpus(index=0)}, "share one index"),
        ({"gpus": [gpu | {"minor": 3} for gpu in gpus()]}, "share one minor"),
        ({"gpus": gpus(cc_mode="true")}, r"'true' is none of off, on, devtools - at `\$\.gpus\[1\]\.cc_mode`"),
        ({"gpus": gpus(cc_capable=1)}, r"\$\.cc_capable.*\$\.gpus\[1\]"),
        ({"gpus": gpus(pci_bus_id="1:2")}, r"\$\.gpus\[1\]\.pci_bus_id"),
        ({"levels": ["X PIX"]}, r"1 rows.*\$\.levels"),
        ({"levels": ["X PIX", "PIX"]}, r"1 cells.*\$\.levels\[1\]"),
        ({"levels": ["X PIX", "PXB X"]}, r"'PXB' from 1 to 0.*\$\.levels\[1\]"),
        ({"levels": ["PIX X", "X PIX"]}, r"on the diagonal.*\$\.levels\[0\]"),
        ({"levels": ["X QPI", "QPI X"]}, r"'QPI'.*\$\.levels\[0\]"),
        ({"nvlinks": ["X NV2", "NV2 X"]}, r"'NV2'.*\$\.nvlinks\[0\]"),
        ({"nvlinks": ["X 62", "62 X"]}, "62 NVLinks"),
        ({"numa_nodes": [0]}, "NUMA nodes of 1"),
        ({"numa_nodes": [0, -1]}, "negative"),
        ({"nics": [{"name": "mlx5_0", "levels": "PIX"}]}, r"\$\.nics\[0\]\.levels"),
        ({"nics": [{"name": "mlx5_0", "levels": "PIX NEAR"}]}, r"'NEAR'.*\$\.nics\[0\]\.levels"),
        ({"nics": [{"name": "a", "levels": "? ?"}, {"name": "a", "levels": "? ?"}]}, "share a name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInputError, match=place):
        decode_machine(json.dumps(document(**changes)).encode())


@given(st.binary() | st.text().map(str.encode) | st.recursive(st.none() | st.integers(), st.lists).map(
    lambda value: json.dumps(document(levels=value, numa_nodes=value)).encode()))  # fmt: skip
def test_any_bytes_are_a_machine_or_a_clear_error(content: bytes) -> None:
    message = ""
    try:
        decode_machine(content).check()
    except BadInputError as error:
        message = str(error)
    assert "\n" not in message


def test_mig_devices_come_back_as_they_went_in() -> None:
    machine = divided_machine()
    text = encode_machine(machine).decode()
    assert '    {"parent_uuid": "GPU-00000000-0000-4000-8000-000000000001", "uuid": "MIG-' in text
    assert decode_machine(text.encode()) == machine


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"colour": "red"}, r"unknown key 'colour' - at `\$\.mig_devices\[0\]`"),
        ({"uuid": "GPU-1"}, r"\$\.mig_devices\[0\]\.uuid"),
        ({"profile": "x" * 30}, r"\$\.mig_devices\[0\]\.profile"),
        ({"start": "0"}, r"\$\.start.*\$\.mig_devices\[0\]"),
        ({"start": -1}, r"negative - at `\$\.mig_devices\[0\]`"),
        ({"access_minors": [1]}, r"\$\.access_minors"),
        ({"parent_uuid": UUIDS[0][:-1] + "9"}, "has no parent among the GPUs"),
        ({"uuid": mig_uuid(0)}, "two MIG devices share one uuid"),
        ({"profile": "1g.10gb", "start": 0}, "two MIG devices share one device name"),
        ({"gpu_instance_id": 9}, "not in the order of their parents"),
    ],
)
def test_what_is_wrong_with_a_mig_device_is_named_with_its_place(change: dict[str, Any], place: str) -> None:
    plain = json.loads(encode_machine(divided_machine()))
    plain["mig_devices"][0] |= change
    with pytest.raises(BadInputError, match=place):
        decode_machine(json.dumps(plain).encode())
