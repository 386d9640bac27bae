"""The cgroups of this node's pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dracaena.api.names import PodUid
from dracaena.host.facts.pod_cgroups import PARENTS, pod_cgroups

_PLAIN_UID: Final = re.compile("[A-Za-z0-9-]{1,63}")


class Cgroups:
    """The tree below a root, `/sys/fs/cgroup` of the host. From any thread."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def problem(self) -> str | None:
        """Return why no pod of this node can be limited, None if they can. Costs a few file system look-ups."""
        if not (self._root / "cgroup.controllers").exists():
            return (
                f"{self._root} is not a cgroup v2 tree, which the GPU driver needs for memory limits: start the node "
                "with cgroup v2, or mount the host's tree there"
            )
        if not any((self._root / name).is_dir() for name in PARENTS):
            return (
                f"kubelet keeps no cgroups of pods below {self._root} ({' or '.join(PARENTS)}): its setting "
                "cgroupsPerQOS must be true, and its cgroupRoot /"
            )
        return None

    def of_pod(self, uid: PodUid) -> str | None:
        """Return the folder of a pod's cgroup, None while there is none."""
        if _PLAIN_UID.fullmatch(uid) is None:
            return None
        found = (self._root / path for path in pod_cgroups(uid))
        return next((str(path) for path in found if path.is_dir()), None)
