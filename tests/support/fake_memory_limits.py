"""A cgroup v2 tree in a folder, and an NVML that limits in it what cgroups take of GPUs (driver R615)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from dracaena.api.machine import Machine
from dracaena.host.facts.pod_cgroups import pod_cgroups
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError
from support.fake_nvml import FakeNvml, _ordinal_of

OFF, MISC, DMEM = range(3)
"""Values of RmMemacctMode."""
NONE_BYTES = int(pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)


class CgroupTree:
    """The tree of a node. `kinds` says which of the paths that a pod may have kubelet takes: 0 to 5."""

    def __init__(self, root: Path, kind: int = 1, *, dmem: bool = False) -> None:
        self.root, self.kind, self.dmem = root, kind, dmem
        root.mkdir(parents=True, exist_ok=True)
        (root / "cgroup.controllers").write_text("cpu memory\n")
        (root / ("kubepods.slice" if kind < 3 else "kubepods")).mkdir(exist_ok=True)

    def add(self, uid: str) -> Path:
        """Make the cgroup of a pod, with its parents."""
        path = self.root / list(pod_cgroups(uid))[self.kind]  # type: ignore[arg-type]
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path, *path.parents) if self.dmem else ():
            if folder == self.root:
                break
            (folder / "dmem.max").touch()
        return path

    def remove(self, uid: str) -> None:
        path = self.root / list(pod_cgroups(uid))[self.kind]  # type: ignore[arg-type]
        (path / "dmem.max").unlink(missing_ok=True)
        path.rmdir()


class MemoryLimitingNvml(FakeNvml):
    """`limits`: (ordinal, cgroup) → soft and hard limit in bytes. `kept`: what each cgroup above has to keep (dmem),
    which goes down with a soft limit alone: a cgroup that is removed leaves it.
    """

    def __init__(self, machine: Machine, mode: int = MISC) -> None:
        super().__init__(machine)
        self.mode, self.is_root = mode, True
        self.limits: dict[tuple[int, str], tuple[int, int]] = {}
        self.kept: dict[tuple[int, str], int] = {}

    def _nvmlDeviceSetMemoryLimits_v1(self, handle: Any, limits: Any) -> int:
        asked, ordinal = limits._obj, _ordinal_of(handle)
        if self.mode == OFF or self.machine.gpus[ordinal].mig_enabled:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if not self.is_root:
            return int(pynvml.NVML_ERROR_NO_PERMISSION)
        cgroup = Path(asked.nameSpace)
        if not cgroup.is_dir():
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if self.mode == DMEM and not (cgroup / "dmem.max").exists():
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        before, _ = self.limits.get((ordinal, str(cgroup)), (0, NONE_BYTES))
        for above in cgroup.parents if self.mode == DMEM else ():
            if not (above / "dmem.max").exists():
                break
            key = (ordinal, str(above))
            self.kept[key] = self.kept.get(key, 0) + asked.softLimit - before
        self.limits[ordinal, str(cgroup)] = (asked.softLimit, asked.hardLimit)
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceGetMemoryLimits_v1(self, handle: Any, limits: Any) -> int:
        cgroup = Path(limits._obj.nameSpace)
        for place in (cgroup, *cgroup.parents):
            found = self.limits.get((_ordinal_of(handle), str(place)))
            if found is not None:
                limits._obj.softLimit, limits._obj.hardLimit = found
                return int(pynvml.NVML_SUCCESS)
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED)


LIMIT = "limit-of-gpu-"
"""Begins the name of the file that NvmlWithLimitFiles puts into a cgroup; the GPU's ordinal ends it."""


class NvmlWithLimitFiles(MemoryLimitingNvml):
    """Shows in each cgroup which limits it has, so that another process sees them. It keeps no list of its calls."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.calls = _Unkept()

    def _nvmlDeviceSetMemoryLimits_v1(self, handle: Any, limits: Any) -> int:
        answer = super()._nvmlDeviceSetMemoryLimits_v1(handle, limits)
        ordinal, cgroup = _ordinal_of(handle), limits._obj.nameSpace
        _, hard_bytes = self.limits.get((ordinal, str(Path(cgroup))), (0, NONE_BYTES))
        path = Path(cgroup) / f"{LIMIT}{ordinal}"
        if hard_bytes == NONE_BYTES:
            path.unlink(missing_ok=True)
        else:
            path.write_text(f"{hard_bytes}\n", encoding="ascii")
        return answer


class _Unkept(list[str]):
    def append(self, _call: str, /) -> None:
        """Forget it."""


class FakeLimiter:
    """Implements LimitMemory. `before_each` is called before each change and after it."""

    def __init__(self, *gpus: str) -> None:
        self.gpus = set(gpus)
        self.limits: dict[tuple[str, str], int] = {}
        self.before_each: Callable[[], None] = lambda: None
        self.problem: str | None = None

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        if self.problem is not None:
            raise NotOfferedError(self.problem)
        if gpu not in self.gpus:
            raise GpuGoneError(f"no GPU {gpu}")
        self.before_each()
        if limit_bytes is None:
            self.limits.pop((gpu, cgroup), None)
        else:
            self.limits[gpu, cgroup] = limit_bytes
        self.before_each()

    def of(self, path: Path, gpu: str) -> int | None:
        return self.limits.get((gpu, str(path)))
