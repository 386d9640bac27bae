"""The mode of a share, whatever stands in the config of an allocation; amounts in words."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.sharing import NO_MODE, UNREADABLE_MODE, in_words, mode_in, mode_of, mode_parameters

GIB_NANO = (1 << 30) * 10**9


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('{"kind": "GpuConfig"}', None),
        ('{"kind": "GpuConfig", "sharing": {"enforcement": "BestEffort"}}', None),
        ('{"kind": "GpuConfig", "sharing": {"strategy": "MPS", "mps": {"more": [1]}}}', "MPS"),
        ('{"kind": "TopologyPolicy", "requirement": "PIX"}', None),
        ("{}", None),
        ('{"kind": "GpuConfig", "sharing": 3}', UNREADABLE_MODE),
        ("[", UNREADABLE_MODE),
        ('{"kind": "GpuConfig", "x": ' + "[" * 1500 + "]" * 1500 + "}", UNREADABLE_MODE),
    ],
)
def test_parameters_tell_a_mode_or_that_nobody_can_tell(text: str, mode: str | None) -> None:
    assert mode_in(msgspec.Raw(text.encode())) == mode


@pytest.mark.parametrize("mode", [NO_MODE, "MPS", "TimeSlicing", UNREADABLE_MODE])
def test_what_is_kept_of_a_config_tells_the_same_mode(mode: str) -> None:
    assert mode_in(mode_parameters(mode)) == mode


def test_the_last_config_that_says_a_strategy_for_a_request_counts() -> None:
    says_nothing = msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"enforcement": "BestEffort"}}')
    configs = [((), mode_parameters("MPS")), (("small",), mode_parameters("TimeSlicing")), ((), says_nothing)]
    assert mode_of("small", configs) == "TimeSlicing"
    assert mode_of("small/first", configs) == "TimeSlicing"
    assert mode_of("large", configs) == "MPS"
    assert mode_of("large", [((), says_nothing)]) == NO_MODE


@pytest.mark.parametrize(
    ("name", "nano", "words"),
    [
        ("memory", 20 * GIB_NANO, "20 GiB of memory"),
        ("memory", 81559 * GIB_NANO // 1024, "79.6 GiB of memory"),
        ("memory", GIB_NANO // 2, "512 MiB of memory"),
        ("cores", 30 * 10**9, "30 % of the cores"),
        ("encoders", 2 * 10**9, "2 of encoders"),
    ],
)
def test_amounts_are_said_as_users_write_them(name: str, nano: int, words: str) -> None:
    assert in_words(name, nano) == words
