"""What a quota says, and what is told of one that cannot be read."""

from __future__ import annotations

import json
import random

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.gpu_quota import (
    GPUS,
    GPUS_BY_PRODUCT,
    KEYS,
    MIG_DEVICES,
    MIG_SLICES,
    MOST_BYTES,
    SHARE_CORES,
    SHARE_MEMORY,
    Excess,
    QuotaItem,
    find_excess,
    read_leniently,
    read_quota,
)

H100 = "NVIDIA H100 80GB HBM3"
EVERYTHING = {
    GPUS: 8,
    GPUS_BY_PRODUCT: {H100: 4},
    SHARE_MEMORY: "160Gi",
    SHARE_CORES: 400,
    MIG_SLICES: 14,
    MIG_DEVICES: {"1g.10gb": 4, "1g.10gb+me": 1, "1c.3g.40gb": 0},
}


def test_each_limit_is_read_in_its_unit() -> None:
    assert read_quota(json.dumps(EVERYTHING)) == {
        QuotaItem(GPUS): 8,
        QuotaItem(GPUS_BY_PRODUCT, H100): 4,
        QuotaItem(SHARE_MEMORY): 160 << 30,
        QuotaItem(SHARE_CORES): 400,
        QuotaItem(MIG_SLICES): 14,
        QuotaItem(MIG_DEVICES, "1g.10gb"): 4,
        QuotaItem(MIG_DEVICES, "1g.10gb+me"): 1,
        QuotaItem(MIG_DEVICES, "1c.3g.40gb"): 0,
    }
    assert read_quota("{}") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON (Expecting value: line 1 column 1 (char 0)), expected an object such as"),
        ("[" * 5_000, "not JSON ("),
        ('{"gpus": ' + "9" * 5_000 + "}", "not JSON ("),
        ("8", "8, expected an object such as"),
        ('{"gpu": 8}', "gpu: unknown, expected one of gpus, gpusByProduct, shareMemory"),
        ('{"gpus": -1}', "gpus: -1, expected a whole number of at least 0"),
        ('{"gpus": "8"}', 'gpus: "8", expected a whole number'),
        ('{"gpus": true}', "gpus: true, expected a whole number"),
        ('{"gpus": 8.0}', "gpus: 8.0, expected a whole number"),
        ('{"gpus": NaN}', "gpus: NaN, expected a whole number"),
        ('{"gpus": 1e400}', "gpus: Infinity, expected a whole number"),
        ('{"gpus": {"x": 1}}', "gpus: an object, expected a whole number"),
        ('{"gpus": 10000000000}', "gpus: 10000000000, expected a whole number"),
        ('{"gpus": 1, "gpus": 2}', "gpus: stands twice, expected once"),
        ('{"shareCores": "50%"}', 'shareCores: "50%", expected a whole number of at least 0, in percent of one GPU'),
        ('{"shareMemory": 160}', 'shareMemory: 160, expected a text such as "160Gi"'),
        ('{"shareMemory": "160GB"}', 'shareMemory: "160GB", expected a whole number with a unit, such as "160Gi"'),
        ('{"shareMemory": "-1Gi"}', 'shareMemory: "-1Gi", expected a whole number with a unit'),
        ('{"gpusByProduct": 8}', "gpusByProduct: 8, expected an object with a number for each product"),
        ('{"gpusByProduct": {"": 8}}', "gpusByProduct.: no product, expected the productName of GPUs"),
        ('{"gpusByProduct": {"A": 1, "A": 2}}', "gpusByProduct.A: stands twice, expected once"),
        (r'{"gpusByProduct": {"\ud800": 1}}', r"gpusByProduct.'\ud800': no product, expected the productName of GPUs"),
        (r'{"migDevicesByProfile": {"\udfff": 1}}', r"migDevicesByProfile.'\udfff': no profile, expected a name"),
        (r'{"\ud800é": 1}', r"'\ud800\xe9': unknown, expected one of gpus"),
        (r'{"gpus": "\ud800"}', r'gpus: "\ud800", expected a whole number'),
        ('{"migDevicesByProfile": {"1g": 8}}', "migDevicesByProfile.1g: no profile, expected a name as nvidia-smi"),
    ],
)
def test_what_is_wrong_is_reported_with_its_key_and_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(BadInputError) as error:
        read_quota(text)
    assert str(error.value).startswith(words)
    assert len(str(error.value)) < 400
    assert str(error.value).encode().decode() == str(error.value)


def test_all_mistakes_are_reported_at_once_and_what_is_right_is_read() -> None:
    limits, problems = read_leniently('{"gpus": 8, "gpu": 1, "shareCores": -1}')
    assert limits == {QuotaItem(GPUS): 8}
    assert [problem.path for problem in problems] == [("gpu",), (SHARE_CORES,)]


def test_a_huge_text_is_not_looked_at() -> None:
    with pytest.raises(BadInputError, match="more than 16 KiB, expected a JSON object of limits"):
        read_quota(json.dumps({GPUS_BY_PRODUCT: {str(number): 1 for number in range(MOST_BYTES)}}))


def test_names_of_any_script_are_read() -> None:
    assert read_quota(json.dumps({GPUS_BY_PRODUCT: {"カード é 😀": 1}})) == {
        QuotaItem(GPUS_BY_PRODUCT, "カード é 😀"): 1
    }


def test_no_text_makes_it_fail() -> None:
    rng = random.Random(1)
    pieces = [*KEYS, "{", "}", "[", "]", ":", ",", '"', "1", "-", "1g.10gb", "160Gi", "null", "\x00", "é", " "]
    pieces += [r"\ud800", r'{"\udc00": 1}', "\ud800"]
    for _ in range(2_000):
        limits, problems = read_leniently("".join(rng.choices(pieces, k=rng.randrange(12))))
        "".join((*map(str, problems), *(one.name for one in limits))).encode()


def excess(limits: dict[QuotaItem, int], held: dict[QuotaItem, int], wanted: dict[QuotaItem, int]) -> Excess | None:
    return find_excess("research", limits, held, wanted)


def test_a_pod_beyond_a_limit_learns_the_numbers() -> None:
    gpus, h100 = QuotaItem(GPUS), QuotaItem(GPUS_BY_PRODUCT, H100)
    told = excess({gpus: 9, h100: 8}, {gpus: 7, h100: 7}, {gpus: 2, h100: 2})
    words = f"namespace research may have 8 GPUs of product {H100}, holds 7, the pod wants 2"
    assert str(told) == words
    assert excess({gpus: 9, h100: 9}, {gpus: 7, h100: 7}, {gpus: 2, h100: 2}) is None
    memory = QuotaItem(SHARE_MEMORY)
    told = excess({memory: 16 << 30}, {memory: 10 << 30}, {memory: 10 << 30})
    assert str(told) == "namespace research may have 16Gi of memory in shares of GPUs, holds 10Gi, the pod wants 10Gi"


def test_the_limit_on_all_gpus_is_reported_before_the_one_on_a_product() -> None:
    gpus, h100 = QuotaItem(GPUS), QuotaItem(GPUS_BY_PRODUCT, H100)
    told = excess({gpus: 1, h100: 1}, {}, {gpus: 2, h100: 2})
    assert told is not None
    assert told.counted == gpus


def test_a_quota_below_what_is_held_matters_only_to_who_wants_more_of_it() -> None:
    gpus, cores = QuotaItem(GPUS), QuotaItem(SHARE_CORES)
    assert excess({gpus: 1}, {gpus: 5}, {cores: 50}) is None
    assert excess({gpus: 1}, {gpus: 5}, {gpus: 0}) is None
    assert excess({gpus: 1}, {gpus: 5}, {gpus: 1}) is not None


def test_gpus_of_which_nothing_is_known_count_against_each_product() -> None:
    unknown, h100 = QuotaItem(GPUS_BY_PRODUCT, ""), QuotaItem(GPUS_BY_PRODUCT, H100)
    told = excess({h100: 2}, {unknown: 1, h100: 1}, {h100: 1})
    assert told is not None
    assert told.held == 2
