"""Our CDI specs hold what NVIDIA's own generator puts into its specs for the same hosts, as it was recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conformance.cdi import DIFFERENCES, our_facts, recorded, unexplained

from dracaena.kubelet_plugin.adapters.gpu_driver import device_nodes
from dracaena.kubelet_plugin.adapters.gpu_driver import files as finding
from dracaena.kubelet_plugin.prepare.cdi import gpu_driver_files as giving
from dracaena.kubelet_plugin.prepare.cdi import hooks
from support.driver_trees import LAYOUTS, make_host

REFERENCE = recorded()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_spec_differs_from_the_generators_only_where_there_is_a_reason(tmp_path: Path, name: str) -> None:
    make_host(tmp_path, LAYOUTS[name])
    assert unexplained(our_facts(tmp_path, LAYOUTS[name]), REFERENCE[name]) == ()


def test_every_reason_is_needed(tmp_path: Path) -> None:
    different: set[str] = set()
    for name, layout in LAYOUTS.items():
        make_host(tmp_path / name, layout)
        ours = our_facts(tmp_path / name, layout)
        different |= {f"+{fact}" for fact in ours - REFERENCE[name]} | {f"-{fact}" for fact in REFERENCE[name] - ours}
    for difference in DIFFERENCES:
        assert any(re.fullmatch(difference.facts, fact) for fact in different), difference.why


NOTHING: Mapping[str, str] = {}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (finding, "_PLUGIN_FOLDER", "elsewhere"),
        (finding, "BINARIES", ("nvidia-smi",)),
        (finding, "FIRMWARE", ()),
        (finding, "CONFIGURATION", ()),
        (finding, "VULKAN", ()),
        (finding, "SOCKETS", ()),
        (finding, "_LIBRARIES_WITH_OTHER_VERSIONS", ()),
        (finding, "_X_FOLDERS", ()),
        (giving, "_SONAME_LINKS", NOTHING),
        (giving, "_FILE_LINKS", NOTHING),
        (giving, "LIBRARY_FOLDERS_VARIABLE", "OTHER"),
        (hooks, "ENABLE_CUDA_COMPAT", "unknown"),
        (hooks, "APPLICATION_PROFILE", "unknown"),
        (hooks, "CUDA_MEMORY_LIMITS", "unknown"),
        (hooks, "CREATE_RUNTIME", "createContainer"),
        (device_nodes, "_DRM_NAME", re.compile("card1")),
    ],
)
def test_what_a_spec_lacks_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: object
) -> None:
    """Faults planted one by one: the comparison must find each."""
    make_host(tmp_path, LAYOUTS["ubuntu-550"])
    monkeypatch.setattr(module, name, value)
    assert unexplained(our_facts(tmp_path, LAYOUTS["ubuntu-550"]), REFERENCE["ubuntu-550"]) != ()
