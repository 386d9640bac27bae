"""Whether KVM runs confidential guests, by files of a /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.sysfs.confidential_host import runs_confidential_guests


@pytest.mark.parametrize("name", ["kvm_intel/parameters/tdx", "kvm_amd/parameters/sev_snp"])
@pytest.mark.parametrize(
    ("text", "expected"), [("Y\n", True), ("1\n", True), ("N\n", False), ("0\n", False), ("", False)]
)
def test_the_parameter_of_either_vendor_says_it(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    file = tmp_path / "module" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert runs_confidential_guests(str(tmp_path)) is expected


def test_without_kvm_there_is_none(tmp_path: Path) -> None:
    assert not runs_confidential_guests(str(tmp_path))
