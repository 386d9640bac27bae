"""What the files of containerd, CRI-O and NVIDIA's toolkit let containers without a claim have."""

from __future__ import annotations

import tomllib

import pytest

from dracaena.kubelet_plugin.discovery.health.toolkit_access import (
    NvidiaRuntime,
    ToolkitConfig,
    nvidia_runtimes,
    why_open,
)

CONTAINERD_2 = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
DROP_IN = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-legacy.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy"
"""
CRIO = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
"""
USUAL = "/usr/bin/nvidia-container-runtime"
OPERATORS = "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], ()),
        ([CONTAINERD_2], (NvidiaRuntime("nvidia", USUAL, is_default=False),)),
        ([CRIO], (NvidiaRuntime("nvidia", USUAL, is_default=False),)),
        (
            [CONTAINERD_2, DROP_IN],
            (
                NvidiaRuntime("nvidia", USUAL, is_default=True),
                NvidiaRuntime("nvidia-legacy", OPERATORS, is_default=False),
            ),
        ),
        (["runtimes = 3\n[a]\nruntimes = {x = 1, y = {options = 2}, z = {runtime_path = 4}}"], ()),
        (['[runtimes.kata]\nruntime_path = "/opt/kata/bin/containerd-shim-kata-v2"'], ()),
    ],
)
def test_nvidias_runtimes_are_found_in_any_form(texts: list[str], found: tuple[NvidiaRuntime, ...]) -> None:
    assert nvidia_runtimes(map(tomllib.loads, texts)) == found


ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
BY_CLASS = "a container of a RuntimeClass with handler nvidia gets the GPUs that it names"


@pytest.mark.parametrize(
    ("document", "is_default", "words"),
    [
        ({}, False, f"{BY_CLASS} ({ENVIRONMENT} in /c, which is not there)"),
        ({"x": 1}, False, f"{BY_CLASS} ({ENVIRONMENT} in /c)"),
        ({ENVIRONMENT: True}, True, f"any container gets the GPUs that it names ({ENVIRONMENT} in /c)"),
        ({ENVIRONMENT: False}, True, ""),
        ({ENVIRONMENT: False, MOUNTS: True}, False, f"{BY_CLASS} ({MOUNTS} in /c)"),
        ({ENVIRONMENT: True, MOUNTS: True}, False, f"{BY_CLASS} ({ENVIRONMENT} and {MOUNTS} in /c)"),
        ({ENVIRONMENT: False, MOUNTS: False}, False, ""),
        ({ENVIRONMENT: "false"}, False, f"{BY_CLASS} ({ENVIRONMENT} in /c)"),
    ],
)
def test_only_false_closes_the_door(document: dict[str, object], is_default: bool, words: str) -> None:
    runtime = NvidiaRuntime("nvidia", USUAL, is_default=is_default)
    assert why_open([runtime], lambda program: ToolkitConfig("/c", document)) == words


def test_without_nvidias_runtime_no_toolkit_opens_anything() -> None:
    assert why_open([], lambda program: ToolkitConfig("/c", {})) == ""


def test_each_runtime_is_judged_by_its_own_file() -> None:
    runtimes = [NvidiaRuntime("a", "/a/x", is_default=False), NvidiaRuntime("b", "/b/x", is_default=False)]
    files = {"/a/x": {ENVIRONMENT: False}, "/b/x": {ENVIRONMENT: True}}
    words = why_open(runtimes, lambda program: ToolkitConfig(f"{program}.toml", files[program]))
    assert (
        words
        == f"a container of a RuntimeClass with handler b gets the GPUs that it names ({ENVIRONMENT} in /b/x.toml)"
    )
