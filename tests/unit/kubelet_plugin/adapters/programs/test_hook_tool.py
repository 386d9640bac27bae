"""NVIDIA's hook tool: found on the host, asked only for what its version knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.programs.hook_tool import find_hook_tool, read_hook_tool
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS, FIRST_COMMANDS, HookTool
from support.gpu_driver_root import put


def put_tool(root: Path, path: str, commands: frozenset[str] = COMMANDS, begin: bytes = b"\x7fELF") -> Path:
    """Add a program with these words between others, as a linker puts them together."""
    tool = put(root, path, begin + b"\0" * 5000 + "".join(sorted(commands)).encode() + b"\xff" * 100)
    tool.chmod(0o755)
    return tool


def found(root: Path, path: str = "") -> HookTool | None:
    tool = find_hook_tool(GpuDriverRoot(str(root)), path)
    return read_hook_tool(tool) if tool is not None else None


def test_no_tool_is_none(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    put(tmp_path, "/usr/bin/nvidia-cdi-hook").chmod(0o644)
    assert found(tmp_path) is None


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"])
def test_the_usual_folders_are_searched(tmp_path: Path, path: str) -> None:
    put_tool(tmp_path, path)
    assert found(tmp_path) == HookTool(path, COMMANDS)


def test_the_tool_of_its_own_comes_before_the_older_one(tmp_path: Path) -> None:
    put_tool(tmp_path, "/usr/bin/nvidia-ctk")
    assert found(tmp_path) == HookTool("/usr/bin/nvidia-ctk", COMMANDS)
    put_tool(tmp_path, "/usr/local/bin/nvidia-cdi-hook")
    assert found(tmp_path) == HookTool("/usr/local/bin/nvidia-cdi-hook", COMMANDS)


def test_a_given_path_is_the_only_one(tmp_path: Path) -> None:
    put_tool(tmp_path, "/usr/bin/nvidia-cdi-hook")
    assert found(tmp_path, "/opt/nvidia-cdi-hook") is None
    put_tool(tmp_path, "/opt/nvidia-cdi-hook")
    assert found(tmp_path, "/opt/nvidia-cdi-hook") == HookTool("/opt/nvidia-cdi-hook", COMMANDS)


def test_an_old_version_knows_less(tmp_path: Path) -> None:
    put_tool(tmp_path, "/usr/bin/nvidia-cdi-hook", frozenset({"enable-cuda-compat"}))
    assert found(tmp_path) == HookTool("/usr/bin/nvidia-cdi-hook", FIRST_COMMANDS | {"enable-cuda-compat"})


def test_behind_the_operators_script_stands_the_program(tmp_path: Path) -> None:
    path = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    put_tool(tmp_path, path, frozenset(), begin=b"#!/bin/sh\n")
    put_tool(tmp_path, f"{path}.real")
    assert found(tmp_path) == HookTool(path, COMMANDS)


def test_a_tool_behind_a_link_keeps_its_name(tmp_path: Path) -> None:
    put_tool(tmp_path, "/nix/store/x/bin/nvidia-cdi-hook")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-cdi-hook").symlink_to("/nix/store/x/bin/nvidia-cdi-hook")
    assert found(tmp_path) == HookTool("/usr/bin/nvidia-cdi-hook", COMMANDS)


def test_an_empty_tool_knows_what_every_version_knows(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/nvidia-cdi-hook").chmod(0o755)
    assert found(tmp_path) == HookTool("/usr/bin/nvidia-cdi-hook")
