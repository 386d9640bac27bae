from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.cli.main import build_parser, main
from dracaena.cli.node_labels import _STRATEGIES, run
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine
from dracaena.kubelet_plugin.discovery.node_labels import MIG_STRATEGIES
from support.sockets import short_folder


class Driver:
    """A machine source whose machine changes, or cannot be read."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def read_all(self) -> SimpleNamespace:
        name = self.names.pop(0)
        if not name:
            raise TemporaryError("the driver is away")
        return SimpleNamespace(machine=read_machine(name))

    def doing(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_recorded_machine_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node-labels", "--machine", "hgx-h100", "--no-timestamp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3" in lines
    assert lines == sorted(lines)


def test_the_strategies_are_those_of_the_labels() -> None:
    assert _STRATEGIES == MIG_STRATEGIES


def test_the_file_follows_the_machine_and_goes_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "features.d" / "dracaena"
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--interval", "60", "--output-file", str(file)])
    seen: list[dict[str, str]] = []
    inodes = []

    def wait(seconds: float) -> bool:
        assert seconds == 60
        seen.append(dict(line.split("=", 1) for line in file.read_text().splitlines()))
        inodes.append(file.stat().st_ino)
        return len(seen) == 4

    driver = Driver("hgx-h100", "hgx-h100", "", "rtx4090-all-sys")
    times = iter(range(100, 200))
    assert run(arguments, driver, lambda: float(next(times)), wait) == 0  # type: ignore[arg-type]
    families = [labels["nvidia.com/gpu.family"] for labels in seen]
    assert families == ["hopper", "hopper", "hopper", "ada-lovelace"]
    assert len(set(inodes[:3])) == 1, "written again without a change"
    assert {labels["nvidia.com/gfd.timestamp"] for labels in seen} == {"100"}
    assert "the driver is away" in capsys.readouterr().err
    assert not file.exists()


def test_an_interval_needs_a_place_to_write_to() -> None:
    arguments = build_parser().parse_args(["node-labels", "--machine", "hgx-h100", "--interval", "1"])
    with pytest.raises(BadInputError, match="--output-file or --patch-node"):
        run(arguments)


def test_the_driver_is_left_alone_while_somebody_asks_for_that(capsys: pytest.CaptureFixture[str]) -> None:
    with short_folder() as root:
        data = root / "plugins" / "gpu.dracaena.dev"
        data.mkdir(parents=True)
        (data / "release-driver").write_text("the driver is upgraded\n", encoding="utf-8")
        assert main(["node-labels", "--nvml", "--kubelet-root", str(root)]) != 0
    assert "the driver is upgraded" in capsys.readouterr().err
