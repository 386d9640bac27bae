"""Waits and looks for tests on the embedded cluster. Every wait has an end and says what was seen there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dracaena.demo import verify
from dracaena.demo.cluster import DemoCluster, DemoNode
from dracaena.demo.observation import Observation, observe
from dracaena.demo.scenario import ManifestFile, apply

TWO_NODES = (DemoNode("box-7", "7-gpu-box"), DemoNode("dgx-1v", "dgx-1v"))
"""Enough for most questions: every node costs a process and a second."""

TIMEOUT_S = 40.0


def apply_in_order(cluster: DemoCluster, manifests: Iterable[ManifestFile]) -> None:
    """Apply the demo's manifests as the demo does, each when the one before is answered: else what each pod gets, and
    whether all get something, would follow the controller's queue."""
    for manifest in manifests:
        apply(cluster.client, [manifest])
        wait_observed(cluster, f"an answer to {manifest.file}", Observation.unanswered)


def wait_settled(cluster: DemoCluster, waiting: Collection[str] = (), *, pods: int) -> Observation:
    """Wait until this many pods are there and all but `waiting` run, with API and disks agreeing."""
    settled = verify.settled(cluster, waiting)

    def problem(observation: Observation) -> str | None:
        if len(observation.pods) != pods:
            return f"{len(observation.pods)} pods, expected {pods}"
        prepared, allocated = checkpointed_claims(cluster), claims_in_use(observation)
        if prepared != allocated:
            # A claim is freed some time after its pod went and its files are gone.
            return f"claims prepared: {prepared}, allocated: {allocated}"
        return settled(observation)

    return wait_observed(cluster, f"{pods} pods to settle", problem)


def wait_all_free(cluster: DemoCluster) -> Observation:
    return wait_observed(
        cluster, "all to be free", lambda seen: next(iter(verify.all_free(seen, cluster.folders)), None)
    )


def wait_observed(cluster: DemoCluster, what: str, problem: Callable[[Observation], str | None]) -> Observation:
    """Wait until `problem` has nothing to say about what the API shows, and return that."""
    latest: list[Observation] = []

    def missing() -> str | None:
        latest[:] = [observe(cluster.client)]
        return problem(latest[0])

    cluster.wait(what, missing, TIMEOUT_S)
    return latest[0]


def devices_held(observation: Observation) -> list[tuple[str, str, str]]:
    """Return pool, device and shareID of every result of every claim: a device held twice is there twice."""
    return sorted(
        (result.pool, result.device, result.share_id or "")
        for claim in observation.claims
        if claim.status.allocation is not None
        for result in claim.status.allocation.devices.results
    )


def checkpointed_claims(cluster: DemoCluster) -> list[str]:
    """Return the claim UID of every checkpoint on every node."""
    paths: Iterable[str] = (
        path.name.split(".")[0]
        for folders in cluster.folders.values()
        for path in (folders.plugin_data / "claims").glob("*.json")
    )
    return sorted(paths)


def claims_in_use(observation: Observation) -> list[str]:
    """Return the UID of every allocated claim."""
    return sorted(claim.metadata.uid for claim in observation.claims if claim.status.allocation is not None)
