"""Files that tell an unmodified dcgm-exporter who uses each GPU: its folder of job mappings (hpc-job-mapping-dir).

A file is named after a GPU as DCGM counts them, `3`, or `3.7` for GPU instance 7 of it; each line is a job, which the
exporter adds to the GPU's metrics as the label `hpc_job`. Ours are `namespace/pod/container`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice
from dracaena.kubelet_plugin.prepare.reports.podlist import by_name, devices_by_container, used_now

_FILE_NAME = re.compile(r"[0-9]+([.][0-9]+)?")
"""The names that the exporter reads; the hidden names of half-written files do not match."""


def is_job_file(name: str) -> bool:
    """Whether the exporter would read a file of this name."""
    return _FILE_NAME.fullmatch(name) is not None


def job_files(pods: Iterable[Pod], prepared: Sequence[PreparedClaim]) -> Mapping[str, bytes]:
    """Return the files of all GPUs that containers use now, by name; lines sorted, each once.

    Devices whose number was not kept are left out (see PreparedDevice).
    """
    claims = by_name(prepared)
    jobs: dict[str, set[str]] = {}
    for pod in pods:
        for container, given in used_now(pod, devices_by_container(pod, claims)).items():
            job = f"{pod.metadata.namespace}/{pod.metadata.name}/{container}"
            for name in (_file_name(device) for each in given for device in each.devices):
                if name is not None:
                    jobs.setdefault(name, set()).add(job)
    return {name: "".join(f"{job}\n" for job in sorted(jobs[name])).encode() for name in sorted(jobs)}


def _file_name(device: PreparedDevice) -> str | None:
    if device.index is None:
        return None
    if device.gpu_instance_id is not None:
        return f"{device.index}.{device.gpu_instance_id}"
    return str(device.index)
