from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dracaena.demo.container_runtime import Edits, UnresolvableDevicesError, resolve


def write_spec(folder: Path, name: str, *devices: dict[str, Any]) -> None:
    document = {"cdiVersion": "0.6.0", "kind": "gpu.test/claim", "devices": list(devices)}
    (folder / f"{name}.json").write_text(json.dumps(document | {"containerEdits": {"env": ["ALL=1"]}}))


def device(name: str) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"env": [f"ID={name}"], "deviceNodes": [{"path": f"/dev/{name}"}]}}


def test_edits_of_all_named_devices_are_joined(tmp_path: Path) -> None:
    write_spec(tmp_path, "a", device("x"), device("y"))
    write_spec(tmp_path, "b", device("z"))
    edits = resolve(tmp_path, ["gpu.test/claim=z", "gpu.test/claim=x", "gpu.test/claim=x"])
    assert edits == Edits(env=("ALL=1", "ID=x", "ID=z"), device_nodes=("/dev/x", "/dev/z"))


def test_a_device_that_no_spec_names_is_refused(tmp_path: Path) -> None:
    write_spec(tmp_path, "a", device("x"))
    (tmp_path / "half.json").write_text('{"kind":')
    with pytest.raises(UnresolvableDevicesError, match=r"gpu\.test/claim=q"):
        resolve(tmp_path, ["gpu.test/claim=x", "gpu.test/claim=q"])


def test_a_container_without_devices_gets_nothing(tmp_path: Path) -> None:
    assert resolve(tmp_path / "missing", []) == Edits((), ())
