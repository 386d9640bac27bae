"""Which boot of the kernel this is."""

from __future__ import annotations

from pathlib import Path

from dracaena.api.errors import PermanentError

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
"""A fresh UUID at each boot (random(4)); the same in all containers of the machine."""


def read_boot_id() -> str:
    """Return the boot's id. Raises PermanentError if the kernel does not say."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError as error:
        raise PermanentError(f"cannot read the boot id from {BOOT_ID_FILE}: {error.strerror}") from error
