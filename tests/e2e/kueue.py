"""Kueue on the cluster of the tests: its manager as a process, its kinds, and queues that lend each other.

Without its webhooks, which need a Service: what they would add to a Job (that it is suspended) the tests write
themselves, and what they would refuse nobody writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from e2e.api import Api
from e2e.binaries import kueue_crds
from e2e.cluster import Cluster
from e2e.control_plane import ADMIN
from e2e.installation import DRIVER, serves
from e2e.pods import NAMESPACE
from e2e.processes import Program
from e2e.waiting import eventually
from support.certificates import write_server

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
FLAVORS, CLUSTER_QUEUES = f"{GROUP}/resourceflavors", f"{GROUP}/clusterqueues"
LOCAL_QUEUES = f"{GROUP}/namespaces/{NAMESPACE}/localqueues"
WORKLOADS = f"{GROUP}/namespaces/{NAMESPACE}/workloads"

RESOURCE = "example.com/dracaena-gpus"
"""What Kueue counts our GPUs as."""

FLAVOR = "any"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
START_S = 60.0
HEALTH_PORT = 18_081

# Its metrics want a certificate at a place that cannot be set, so it has an /etc of its own.
_WITH_OWN_ETC = """\
mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics/certs && cp "$1"/tls.* /etc/kueue/metrics/certs || exit 1
shift
exec "$@"
"""


@contextmanager
def kueue(program: Path, folder: Path, logs: Path, cluster: Cluster) -> Iterator[Program]:
    """Run Kueue's manager, and make its kinds; they are removed after it, with all objects of them."""
    crds = kueue_crds(program)
    cluster.control_plane.kubectl("apply", "--server-side", "--filename", crds)
    cluster.control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "--filename", crds)
    write_server(folder)
    config = folder / "kueue.json"
    config.write_text(json.dumps(_configuration(folder)), encoding="utf-8")
    command = (
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", _WITH_OWN_ETC, "sh", folder),
        *(program, f"--config={config}", f"--kubeconfig={cluster.control_plane.kubeconfig(ADMIN)}"),
    )
    manager = Program("kueue", command, logs)
    manager.start()
    try:
        ready = f"Kueue is ready ({manager.log})"
        eventually(lambda: serves(HEALTH_PORT, "/readyz"), ready, within_s=START_S, programs=(manager,))
        yield manager
    finally:
        _remove(cluster.api)
        manager.stop()
        cluster.control_plane.kubectl("delete", "--filename", crds)


def _configuration(certificates: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",  # jobs in its own namespace are left alone
        "health": {"healthProbeBindAddress": f"127.0.0.1:{HEALTH_PORT}"},
        "metrics": {"bindAddress": "127.0.0.1:18443"},
        "webhook": {"port": 19443, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"DynamicResourceAllocation": True, "VisibilityOnDemand": False},
        "resources": {"deviceClassMappings": [{"name": RESOURCE, "deviceClassNames": [DRIVER]}]},
    }


def make_queues(api: Api, cohort: str, gpus: Mapping[str, int]) -> None:
    """Make ClusterQueues of one cohort with these GPUs each, and a LocalQueue of the same name for each."""
    api.create(FLAVORS, _named("ResourceFlavor", FLAVOR, None))
    for name, most in gpus.items():
        quota = {"name": RESOURCE, "nominalQuota": most}
        group = {"coveredResources": [RESOURCE], "flavors": [{"name": FLAVOR, "resources": [quota]}]}
        spec = {"cohortName": cohort, "namespaceSelector": {}, "resourceGroups": [group]}
        api.create(CLUSTER_QUEUES, _named("ClusterQueue", name, spec))
        api.create(LOCAL_QUEUES, _named("LocalQueue", name, {"clusterQueue": name}))


def borrowed(api: Api, queue: str) -> int:
    """Return how many GPUs a ClusterQueue has borrowed from its cohort."""
    usage = api.get(f"{CLUSTER_QUEUES}/{queue}").get("status", {}).get("flavorsUsage", ())
    found = [one for flavor in usage for one in flavor["resources"] if one["name"] == RESOURCE]
    return sum(int(one.get("borrowed", "0")) for one in found)


def condition(api: Api, job: str, kind: str) -> Mapping[str, Any]:
    """Return a condition of the Workload of a Job, empty while it has none."""
    for workload in api.items(WORKLOADS):
        if any(owner["name"] == job for owner in workload["metadata"].get("ownerReferences", ())):
            found = workload.get("status", {}).get("conditions", ())
            return next((one for one in found if one["type"] == kind), {})
    return {}


def _remove(api: Api) -> None:
    """Remove queues while the manager runs: it takes its finalizers off."""
    for collection in (WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES, FLAVORS):
        for one in api.items(collection):
            api.delete(f"{collection}/{one['metadata']['name']}")
        empty = f"no {collection.rpartition('/')[2]} are left"
        eventually(partial(_is_empty, api, collection), empty, within_s=START_S)


def _is_empty(api: Api, collection: str) -> bool:
    return not api.items(collection)


def _named(kind: str, name: str, spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    document = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
    return document if spec is None else {**document, "spec": spec}
