"""Take the scheduling gate of a driver off all pods, once nobody puts it on any more. Exit code 1 if some keep it."""

import sys
import time

from dracaena.api.errors import DracaenaError
from dracaena.api.names import allocation_gate
from dracaena.api.objects import Pod
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ConflictError, InvalidError, NotFoundError
from dracaena.kube.transport import Transport

LOOKS = 3
"""Lists in a row that have to show no gate: API servers may apply a deleted policy for a moment."""

PAUSE_S = 2.0
"""Between two lists."""

MOST_S = 100.0
"""The Job has 120 s."""


def main(driver: str) -> int:
    """Remove the gates, say how many, and return the exit code."""
    gate, removed, clean = allocation_gate(driver), 0, 0
    until_s = time.monotonic() + MOST_S
    try:
        client = KubeClient(Transport.from_kubeconfig(None, user_agent="dracaena-uninstall"))
        while clean < LOOKS and time.monotonic() < until_s:
            found = [
                pod for pod in client.list(Pod).items if any(one.name == gate for one in pod.spec.scheduling_gates)
            ]
            clean = 0 if found else clean + 1
            removed += sum(_ungate(client, pod, gate) for pod in found)
            time.sleep(PAUSE_S)
    except DracaenaError as error:
        sys.stdout.write(f"scheduling gates {gate} cannot be removed: {error}\n")
        return 1
    sys.stdout.write(f"scheduling gate {gate} removed from {removed} pods\n")
    return 0 if clean == LOOKS else 1


def _ungate(client: KubeClient, pod: Pod, gate: str) -> bool:
    """Remove the gate and no other: the server refuses to add one, so what others removed meanwhile stays away."""
    others = [{"name": one.name} for one in pod.spec.scheduling_gates if one.name != gate]
    patch = {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": others or None}}
    try:
        client.merge_patch(Pod, pod.metadata.name, patch, namespace=pod.metadata.namespace)
    except (ConflictError, InvalidError, NotFoundError):
        return False  # it has changed: the next list shows how
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
