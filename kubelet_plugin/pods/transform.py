"""What is kept of this node's pods: users may write 256 KiB of annotations and more, of which little is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dracaena.api.names import devices_annotation, uuids_annotation
from dracaena.api.objects import ContainerStatus, ObjectMeta, Pod


def kept_pod(driver: str) -> Callable[[Pod], Pod]:
    """Return a function that trims a pod to what is kept: its identity, its claims, its containers, which of these run,
    and our annotations."""
    ours = (devices_annotation(driver), uuids_annotation(driver))
    replace = msgspec.structs.replace

    def keep(pod: Pod) -> Pod:
        meta = pod.metadata
        annotations = {name: meta.annotations[name] for name in ours if name in meta.annotations}
        kept = ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            annotations=annotations,
        )
        spec = replace(pod.spec, affinity={}, node_selector={}, tolerations=[], scheduling_gates=[])
        status = replace(
            pod.status,
            conditions=[],
            container_statuses=_states(pod.status.container_statuses),
            init_container_statuses=_states(pod.status.init_container_statuses),
        )
        return Pod(metadata=kept, spec=spec, status=status)

    return keep


def _states(statuses: Sequence[ContainerStatus]) -> list[ContainerStatus]:
    """Keep whether each container is running or has ended: podlist.json names those that run (podlist.used_now)."""
    return [ContainerStatus(name=status.name, state=status.state) for status in statuses]
