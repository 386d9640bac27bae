"""`dracaena driver`: asks, waits for the answer of every plugin on the node, and says what it found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.cli.main import main
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse
from dracaena.host.paths import PluginPaths, plugin_paths
from support.sockets import short_folder

DRIVER = "gpu.dracaena.dev"


@pytest.fixture
def root() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture
def paths(root: Path) -> PluginPaths:
    paths = plugin_paths(str(root), DRIVER, "")
    paths.gpu_driver_lock.parent.mkdir(parents=True)
    return paths


def run(root: Path, *words: str) -> int:
    return main(["driver", *words, "--kubelet-root", str(root)])


def test_release_stands_until_resume(root: Path, paths: PluginPaths, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = GpuDriverUse(paths.gpu_driver_lock, paths.release_request)
    assert run(root, "release", "--reason", "a new driver") == 0
    assert plugin.asked() == "a new driver"
    assert run(root, "status") == 0
    assert run(root, "resume") == 0
    assert run(root, "resume") == 0
    assert plugin.asked() is None
    assert capsys.readouterr().out.splitlines() == [
        "the driver is released: no plugin of this node has it open until `dracaena driver resume`",
        "released: yes, a new driver",
        "open in a plugin: no",
        "the plugin uses the driver again",
        "the driver was not released by this command",
    ]


def test_a_plugin_that_does_not_let_go_in_time_is_reported(
    root: Path, paths: PluginPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = GpuDriverUse(paths.gpu_driver_lock, paths.release_request)
    assert plugin.enter()
    assert run(root, "release", "--timeout", "0") == 1
    assert "still has the driver open after 0 s" in capsys.readouterr().err
    assert plugin.asked() == "no reason was given"
    assert run(root, "status") == 0
    assert "open in a plugin: yes" in capsys.readouterr().out
    plugin.leave()
    assert run(root, "release", "--timeout", "0") == 0


@pytest.mark.parametrize("verb", ["release", "resume", "status"])
def test_where_no_plugin_has_run_the_folder_is_named(root: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, verb) == 2
    assert f"no folder {root}/plugins/{DRIVER}" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["-1", "soon", "1.5", "99999999"])
def test_a_wait_is_a_number_of_seconds(root: Path, timeout: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(root, "release", f"--timeout={timeout}")
    assert ended.value.code == 2
