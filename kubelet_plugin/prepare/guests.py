"""Pods that run in virtual machines of their own (Kata Containers): what they can be given.

Their container runtime takes the device nodes of a container from its CDI spec, as any other does. It turns a VFIO node
into a device of the virtual machine, which contains nothing of the host's NVIDIA driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim


@dataclass(frozen=True, slots=True)
class GuestRuntimes:
    """Which RuntimeClasses run a pod in a virtual machine. A pod says nothing about it but that name."""

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GuestRuntimes:
        """Parse a comma-separated list of names; a `*` at the end of a name matches anything."""
        words = [word for word in text.split(",") if word]
        return cls(
            frozenset(word for word in words if not word.endswith("*")),
            tuple(sorted(word.removesuffix("*") for word in words if word.endswith("*"))),
        )

    def run(self, pod: Pod) -> bool:
        """Whether a pod runs in a virtual machine."""
        name = pod.spec.runtime_class_name
        return bool(name) and (name in self.names or name.startswith(self.prefixes))


NO_GUESTS = GuestRuntimes()


def fitted_to_pods(plan: PreparedClaim, pods: Sequence[Pod], runtimes: GuestRuntimes) -> PreparedClaim | str:
    """Return a claim's plan adapted to its pods, or why they cannot be given it, in words for their owner."""
    guests = [pod for pod in pods if runtimes.run(pod)]
    if not guests:
        return plan
    guest = guests[0]
    where = f"pod {guest.key} runs in a virtual machine (RuntimeClass {guest.spec.runtime_class_name})"
    of_host = [device for device in plan.devices if not device.is_passthrough]
    if of_host:
        return (
            f"{where}, in which there is no NVIDIA driver of this node: request {of_host[0].request} has "
            f"{of_host[0].device}; ask for a GPU for virtual machines (class vfio.<driver name>) or a vGPU (class "
            "vgpu.<driver name>), or leave out runtimeClassName"
        )
    other = next((pod for pod in pods if pod not in guests), None)
    if other is not None:
        return f"{where} and pod {other.key} does not, and both use claim {plan.claim}: give each a claim of its own"
    return replace(plan, in_guest=True)


def why_late_pod_differs(prepared: PreparedClaim, pod: Pod) -> str:
    """Return what a pod is told that came to a claim of pods of the other kind: what it gets, and what to do."""
    if prepared.in_guest:
        return (
            f"pod {pod.key} does not run in a virtual machine, and claim {prepared.claim} was prepared for pods that "
            "do: its containers get the VFIO nodes as Kata needs them and nothing else. Give it a claim of its own"
        )
    return (
        f"pod {pod.key} runs in a virtual machine (RuntimeClass {pod.spec.runtime_class_name}), and claim "
        f"{prepared.claim} was prepared for pods of the host: its containers get what means something on the host "
        "alone. Give it a claim of its own"
    )
