"""Whether the CPUs of this host can run confidential virtual machines, as KVM reports in /sys."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PARAMETERS: Final = ("module/kvm_intel/parameters/tdx", "module/kvm_amd/parameters/sev_snp")
"""Intel TDX, AMD SEV-SNP: `Y` or `1` if the module is loaded with it, and CPU and firmware support it."""


def runs_confidential_guests(root: str = "/sys") -> bool:
    """Return whether one of them is on. A host without the module runs no virtual machines at all."""
    for name in _PARAMETERS:
        try:
            text = (Path(root) / name).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if text in ("Y", "1"):
            return True
    return False
