"""Whether this node labels files with SELinux, and the label with which containers may use them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dracaena.api.errors import PermanentError

CONTAINER_LABEL = "system_u:object_r:container_file_t:s0"
"""Files that containers of all pods may use: without categories, which would reserve them for the pods of one."""

_ATTRIBUTE = "security.selinux"
_CONTEXT = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+(:\S+)?")
"""user:role:type and a level. Without a policy the kernel says `kernel`; AppArmor's names have no such form."""


def container_label(proc_root: str = "/proc") -> str:
    """Return CONTAINER_LABEL where SELinux is in force or permissive, "" where it is off or has no policy.

    As libselinux does, by what the kernel has registered and by this process's own context: the file system of SELinux
    is not mounted in containers.
    """
    try:
        has_selinux = "selinuxfs" in (Path(proc_root) / "filesystems").read_text(encoding="ascii").split()
        context = (Path(proc_root) / "self/attr/current").read_text(encoding="ascii").strip("\0\n")
    except (OSError, UnicodeDecodeError):
        return ""
    return CONTAINER_LABEL if has_selinux and _CONTEXT.fullmatch(context) else ""


def label_folder(path: str, label: str) -> None:
    """Give a folder a label, which files made in it inherit; does nothing for "". Raises PermanentError."""
    if not label:
        return
    try:
        os.setxattr(path, _ATTRIBUTE, label.encode() + b"\0")
    except OSError as error:
        raise PermanentError(
            f"cannot give {path} the SELinux label {label}, without which containers may not use it: {error.strerror}"
        ) from error
