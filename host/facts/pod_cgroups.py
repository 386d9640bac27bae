"""Where kubelet has the cgroup of a pod, below the root of a cgroup v2 tree, and which pod a cgroup belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dracaena.api.names import PodUid

PARENTS: Final = ("kubepods.slice", "kubepods")
"""The folder of all pods, with kubelet's cgroupDriver systemd and cgroupfs; none of them with cgroupsPerQOS false."""

_CLASSES: Final = ("", "burstable", "besteffort")
"""Quality-of-service classes with a folder; guaranteed pods have none."""

_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""With `_` for `-` under systemd; 32 digits for static pods."""


def pod_of_cgroup(text: str) -> PodUid | None:
    """Return the pod that the text of /proc/<pid>/cgroup names, None if it names none; of several lines (cgroup v1) the
    first that does.

    A process cannot choose its cgroup, so this shows who it is of whatever it claims. Paths differ with the cgroup
    driver, the runtime and the reader's cgroup namespace: only the pod's id in them is used.
    """
    found = _POD.search(text)
    return None if found is None else PodUid(found[1].replace("_", "-"))


def pod_cgroups(uid: PodUid) -> Iterator[str]:
    """Return the paths that the cgroup of a pod may have, as kubelet makes them: by its driver and the pod's class.

    A pod has one of them. Source: kubelet's pod_container_manager_linux.go and cgroup_manager_linux.go.
    """
    plain = uid.replace("-", "_")  # a dash separates parents in the name of a slice
    for name in _CLASSES:
        slices = f"kubepods-{name}" if name else "kubepods"
        above = f"kubepods.slice/{slices}.slice" if name else "kubepods.slice"
        yield f"{above}/{slices}-pod{plain}.slice"
    for name in _CLASSES:
        yield f"kubepods/{name}/pod{uid}" if name else f"kubepods/pod{uid}"
