"""kill -9 of the controller and of plugins in the middle of the demo's load: pods end as they do in a calm run."""

from __future__ import annotations

from collections import Counter

from dracaena.demo import verify
from dracaena.demo.cluster import DemoCluster
from dracaena.demo.observation import Observation
from dracaena.demo.programs import ProgramProcess
from dracaena.demo.scenario import NODES, WAITING, apply, delete_pods, load_manifests
from support.embedded_cluster import (
    checkpointed_claims,
    claims_in_use,
    devices_held,
    wait_all_free,
    wait_observed,
    wait_settled,
)
from support.forked_programs import begin_forked


def some_run(observation: Observation) -> str | None:
    running = [pod for pod in observation.pods if pod.state == "Running"]
    return None if running else "no pod runs yet"


def two_run(observation: Observation) -> str | None:
    return None if sum(pod.state == "Running" for pod in observation.pods) >= 2 else "only one pod runs"


def some_allocated(observation: Observation) -> str | None:
    return None if claims_in_use(observation) else "no claim is allocated yet"


def outcome(observation: Observation) -> dict[str, tuple[str, int]]:
    """State and number of GPUs of each pod: what every run must end with, whatever happened on the way.

    Which GPUs they are may differ: it depends on the order of the decisions, and a crash changes that.
    """
    return {pod.name: (pod.state, len(pod.ordinals)) for pod in observation.pods}


def placed_but_not_running(observation: Observation) -> str | None:
    """All claims that can be allocated are, and at least one pod still waits for its plugin."""
    fitting = [pod for pod in observation.pods if pod.name not in WAITING]
    unplaced = [pod.name for pod in fitting if not pod.pod.spec.node_name]
    if unplaced:
        return f"not bound: {', '.join(unplaced)}"
    return None if any(pod.state == "Preparing" for pod in fitting) else "all pods run"


def test_after_kill_9_each_pod_has_the_state_and_number_of_gpus_of_a_calm_run_and_all_invariants_hold() -> None:
    """Compared with the calm run: state and number of GPUs of each pod, and the number of devices held.

    Of both runs, each by itself: every check of demo/verify, that is API, nodes' disks and pods' annotations agree.
    """
    # Without the slices: whether a whole GPU or a part comes first decides who gets the only GPU that can be divided.
    manifests = [each for each in load_manifests() if each.file != "00-slices.yaml"]
    # Slices stay while all plugins are away, however long the controller takes then for the rest of the load.
    with DemoCluster(NODES, begin=begin_forked, wipe_after_s=600.0) as cluster:
        broken_invariant = verify.settled(cluster, WAITING)
        apply(cluster.client, manifests)
        calm = wait_settled(cluster, WAITING, pods=9)
        assert broken_invariant(calm) is None
        assert checkpointed_claims(cluster) == claims_in_use(calm)
        delete_pods(cluster.client)
        wait_all_free(cluster)

        # The controller dies after its first decision, with most of the load still to come.
        apply(cluster.client, manifests[:2])
        wait_observed(cluster, "the first allocation", some_allocated)
        cluster.controller.kill()
        apply(cluster.client, manifests)
        # All plugins die too: whatever is decided from here on cannot be prepared before they are back.
        wait_observed(cluster, "the first pod to run", some_run)
        for node in sorted(cluster.plugins):
            cluster.plugins[node].kill()
        cluster.controller.start()
        wait_observed(cluster, "pods that wait for their plugins", placed_but_not_running)
        kill_and_start(cluster.controller)
        for node in sorted(cluster.plugins):
            cluster.plugins[node].start()
        # One more plugin dies as soon as it is seen to prepare.
        hit = wait_observed(cluster, "another pod to run", two_run)
        busiest = Counter(pod.node for pod in hit.pods if pod.state == "Running").most_common(1)[0][0]
        kill_and_start(cluster.plugins[busiest])
        shaken = wait_settled(cluster, WAITING, pods=9)

        assert broken_invariant(shaken) is None
        assert outcome(shaken) == outcome(calm)
        held = devices_held(shaken)
        assert len(held) == len(set(held)) == len(devices_held(calm))
        assert checkpointed_claims(cluster) == claims_in_use(shaken)

        # And all of them once more while the pods go.
        delete_pods(cluster.client)
        for program in cluster.programs:
            kill_and_start(program)
        wait_all_free(cluster)
        assert checkpointed_claims(cluster) == []


def kill_and_start(program: ProgramProcess) -> None:
    program.kill()
    assert not program.is_running
    program.start()
