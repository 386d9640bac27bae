"""The mode of a share, whatever stands in the config of an allocation; amounts in words."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.sharing import (
    NO_MODE,
    UNREADABLE_MODE,
    in_words,
    mode_of,
    mode_parameters,
    requires_mps,
    said_of_mode,
)

GIB_NANO = (1 << 30) * 10**9


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('{"kind": "GpuConfig"}', NO_MODE),
        ('{"kind": "GpuConfig", "sharing": {"enforcement": "BestEffort"}}', NO_MODE),
        ('{"kind": "GpuConfig", "sharing": {"interval": "Long"}}', NO_MODE),
        ('{"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "interval": "Long"}}', "TimeSlicing Long"),
        ('{"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "interval": "Default"}}', "TimeSlicing"),
        ('{"kind": "GpuConfig", "sharing": {"strategy": "MPS", "interval": "Long"}}', "MPS"),
        ('{"kind": "GpuConfig", "sharing": {"strategy": "MPS", "mps": {"more": [1]}}}', "MPS"),
        ('{"kind": "TopologyPolicy", "requirement": "PIX"}', NO_MODE),
        ("{}", NO_MODE),
        ('{"kind": "GpuConfig", "sharing": 3}', UNREADABLE_MODE),
        ("[", UNREADABLE_MODE),
        ('{"kind": "GpuConfig", "x": ' + "[" * 1500 + "]" * 1500 + "}", UNREADABLE_MODE),
    ],
)
def test_parameters_tell_a_mode_or_that_nobody_can_tell(text: str, mode: str) -> None:
    parameters = msgspec.Raw(text.encode())
    assert mode_of("any", [((), parameters)]) == mode
    kept = said_of_mode(parameters)
    assert mode_of("any", [] if kept is None else [((), kept)]) == mode


@pytest.mark.parametrize("mode", [NO_MODE, "MPS", "TimeSlicing", "TimeSlicing Short", UNREADABLE_MODE])
def test_the_parameters_of_a_mode_tell_it(mode: str) -> None:
    assert mode_of("any", [((), mode_parameters(mode))]) == mode


def test_nothing_is_kept_of_a_config_that_says_nothing_of_the_mode() -> None:
    assert said_of_mode(msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"other": "Required"}}')) is None
    assert said_of_mode(msgspec.Raw(b'{"kind": "TopologyPolicy", "requirement": "PIX"}')) is None


def test_strategy_and_interval_come_from_the_last_configs_that_name_them() -> None:
    configs = [
        ((), msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"interval": "Short"}}')),
        ((), mode_parameters("TimeSlicing")),
        (("small",), msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"interval": "Long"}}')),
        (("plain",), msgspec.Raw(b'{"kind": "GpuConfig", "sharing": {"interval": "Default"}}')),
    ]
    assert mode_of("small", configs) == "TimeSlicing Long"
    assert mode_of("large", configs) == "TimeSlicing Short"
    assert mode_of("plain", configs) == "TimeSlicing"
    kept = [(names, said) for names, one in configs if (said := said_of_mode(one)) is not None]
    assert [mode_of(name, kept) for name in ("small", "large")] == ["TimeSlicing Long", "TimeSlicing Short"]


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


@pytest.mark.parametrize(
    ("said", "required"),
    [
        ([{"strategy": "MPS"}], True),
        ([{"strategy": "MPS", "enforcement": "BestEffort"}], False),
        ([{"strategy": "MPS", "enforcement": "BestEffort"}, {"enforcement": "Required"}], True),
        ([{"enforcement": "BestEffort"}, {"strategy": "MPS"}], False),
        ([{"strategy": "MPS"}, {"strategy": "TimeSlicing"}], False),
        ([{"enforcement": "Required"}], False),
        ([], False),
    ],
)
def test_mps_is_required_as_the_configs_together_say(said: list[dict[str, str]], required: bool) -> None:
    configs = [((), msgspec.Raw(msgspec.json.encode({"kind": "GpuConfig", "sharing": each}))) for each in said]
    assert requires_mps("r", configs) is required
    kept = [((), parameters) for _, each in configs if (parameters := said_of_mode(each)) is not None]
    assert requires_mps("r", kept) is required, "also from what is kept of an allocation"
    assert not requires_mps("r", [(("other",), each) for _, each in configs])
