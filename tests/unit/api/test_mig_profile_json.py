from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.api.machine_json import decode_machine, encode_machine
from support.machines import plain_machine
from support.mig_geometries import A30, A100_40GB, H100_80GB


def mixed_machine() -> Machine:
    machine = plain_machine(5)
    profiles = (H100_80GB, H100_80GB, (), A30, H100_80GB)
    gpus = tuple(replace(gpu, mig_profiles=known) for gpu, known in zip(machine.gpus, profiles, strict=True))
    return replace(machine, gpus=gpus)


def test_profiles_come_back_and_stand_once_for_all_gpus_that_have_them() -> None:
    text = encode_machine(mixed_machine()).decode()
    assert decode_machine(text.encode()) == mixed_machine()
    assert list(json.loads(text)["mig_profiles"]) == ["0-1,4", "3"]
    assert '"max_instances": 7, "placements": "0-6:1", ' in text
    assert text.count('"1g.10gb"') == 1


def test_a_machine_whose_gpus_cannot_be_divided_says_nothing_of_profiles() -> None:
    assert "mig_profiles" not in encode_machine(plain_machine(2)).decode()


def document(**changes: Any) -> bytes:
    plain = json.loads(encode_machine(replace_profiles(plain_machine(2))))
    profile = plain["mig_profiles"]["0-1"][0]
    plain["mig_profiles"] = {"0": [{**profile, **changes}]}
    return json.dumps(plain).encode()


def replace_profiles(machine: Machine) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, mig_profiles=A100_40GB) for gpu in machine.gpus))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"colour": "red"}, r"unknown key 'colour' - at `\$\.mig_profiles\['0'\]\[0\]`"),
        ({"placements": [0]}, "expected placements such as"),
        ({"placements": "0-6"}, r"'0-6' is not `starts:size` - at `\$\.mig_profiles\['0'\]\[0\]\.placements`"),
        ({"placements": "0-6:0"}, "'0-6:0'"),
        ({"placements": "6-0:1"}, "'6-0' is not a range"),
        ({"placements": "0-999:1"}, "'0-999' is not a range"),
        ({"placements": "x:1"}, "'x', expected numbers"),
        ({"placements": "0,0:1"}, "each once"),
        ({"placements": ""}, "ascending order"),
        ({"compute_slices": 0}, "too small"),
        ({"memory_bytes": "1Gi"}, "memory_bytes"),
        ({"name": "large"}, "'large' is not a profile"),
        ({"name": "1g.10gb+aVeryLongOne"}, "is not a profile"),
    ],
)
def test_what_is_wrong_with_a_profile_is_named_with_its_place(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInputError, match=place):
        decode_machine(document(**changes))


@pytest.mark.parametrize("key", ["2", "x", "0,0", "0-9", "", "1-0"])
def test_profiles_of_gpus_that_are_not_there_are_refused(key: str) -> None:
    plain = json.loads(document())
    plain["mig_profiles"] = {key: plain["mig_profiles"]["0"]}
    with pytest.raises(BadInputError, match="mig_profiles"):
        decode_machine(json.dumps(plain).encode())


def test_two_profiles_of_one_name_are_refused() -> None:
    plain = json.loads(document())
    plain["mig_profiles"]["0"] *= 2
    with pytest.raises(BadInputError, match="share one name"):
        decode_machine(json.dumps(plain).encode())
