"""What NVIDIA's program for the modes says, in the forms of its source."""

from __future__ import annotations

import pytest

from dracaena.kubelet_plugin.discovery.cc_mode_tool import (
    MOST_SHOWN,
    is_unsupported,
    mode_in,
    protected_pcie_in,
    query_options,
    shown,
    switch_options,
)

GPU = "0000:18:00.0"
ABOUT = f"GPU {GPU} H100-SXM 0x2330 BAR0 0x52042000000"
HEAD = f"NVIDIA GPU Tools version v2026.02.24o\nCommand line arguments: ['x']\nTopo:\n  PCI 0000:17:01.0\n   {ABOUT}\n"
TIME = "2026-02-24,10:00:00.123"


def line(text: str, level: str = "INFO") -> str:
    return f"{TIME} {level:<8} {text}\n"


@pytest.mark.parametrize("mode", ["on", "off", "devtools"])
def test_the_mode_of_the_gpu_that_was_asked_is_read(mode: str) -> None:
    said = HEAD + line(f"Selected {ABOUT}") + line(f"{ABOUT} CC mode is {mode}")
    assert mode_in(said, GPU) == mode
    assert not is_unsupported(said)


@pytest.mark.parametrize(
    "said",
    [
        "",
        HEAD,
        line(f"{ABOUT} CC mode is half"),
        line(f"{ABOUT} CC mode is on") + line(f"{ABOUT} CC mode is off"),
        line("GPU 0000:18:00.1 H100 CC mode is on"),
        line(f"{ABOUT} has CC mode on, some functionality may not work", "WARNING"),
        line(f"{ABOUT} CC mode set to on. It will be active after GPU reset."),
        line(f"{ABOUT} PPCIe mode is on"),
    ],
)
def test_what_does_not_say_one_mode_of_this_gpu_says_none(said: str) -> None:
    assert mode_in(said, GPU) is None


@pytest.mark.parametrize(
    "text",
    [
        f"Querying CC mode is not supported on {ABOUT}",
        f"Configuring CC not supported on {ABOUT}",
        f"Enabling CC not supported on {ABOUT}. Only disabling CC is allowed.",
        f"Matching for {GPU} found nothing",
    ],
)
def test_what_no_second_try_mends_is_told_apart(text: str) -> None:
    assert is_unsupported(HEAD + line(text, "ERROR"))
    assert not is_unsupported(HEAD + line(text)), "only errors refuse"
    assert shown(HEAD + line(text, "ERROR")) == text


def test_a_driver_that_has_the_gpu_is_no_reason_for_ever() -> None:
    said = line(f"The nvidia driver appears to be using {ABOUT}, aborting. Specify --ignore-nvidia-driver", "ERROR")
    assert not is_unsupported(said)


def test_protected_pcie_is_seen_in_the_warning_that_each_call_prints() -> None:
    assert protected_pcie_in(line(f"{ABOUT} has PPCIe mode on, some functionality may not work", "WARNING"))
    assert not protected_pcie_in(line(f"{ABOUT} has CC mode on, some functionality may not work", "WARNING"))
    assert not protected_pcie_in(HEAD)


def test_what_is_shown_is_its_errors_or_its_last_words_and_not_long() -> None:
    assert shown("") == "nothing"
    assert shown("Traceback\n  a\nImportError: no module\n") == "a; ImportError: no module"
    long = shown(line("x" * 2 * MOST_SHOWN, "ERROR"))
    assert len(long) == MOST_SHOWN + 1
    assert long.startswith("…x")


def test_the_options_are_those_of_one_gpu() -> None:
    assert query_options(GPU) == (f"--gpu-bdf={GPU}", "--query-cc-mode")
    assert switch_options(GPU, "on") == (f"--gpu-bdf={GPU}", "--set-cc-mode=on", "--reset-after-cc-mode-switch")
