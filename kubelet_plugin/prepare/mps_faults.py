"""Faults of MPS servers: which pods they concern, how they are worded, and which were told already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.mps import MpsFault, MpsFaultKind
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.reports.podlist import may_run

PROTOCOL_3: Final = 3

_OF_ALL_PODS: Final = (MpsFaultKind.DAEMON_DIED, MpsFaultKind.GPU_LOST)
"""Faults that also concern pods without a client: they can no longer connect, or only after a restart."""


class ToldFault(msgspec.Struct, frozen=True):
    """The last fault of a share that was told."""

    sequence: int
    since: str
    """Distinguishes it from faults of the share's earlier life: sequences restart when a claim is prepared again."""

    @classmethod
    def of(cls, fault: MpsFault) -> ToldFault:
        """Return what is kept of a fault."""
        return cls(fault.sequence, fault.since)


_TOLD: Final = msgspec.json.Decoder(dict[str, ToldFault])  # inspected by the thread that imports: see kube.client


def encode_told(told: Mapping[str, ToldFault]) -> bytes:
    """Encode told faults, by the name of their share. Equal ones make equal bytes."""
    return msgspec.json.format(msgspec.json.encode(dict(sorted(told.items()))), indent=1) + b"\n"


def decode_told(data: bytes) -> Mapping[str, ToldFault]:
    """Read that file. Raises BadInputError."""
    try:
        return _TOLD.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"the file of reported MPS faults does not decode: {error}") from error


def pods_to_tell(fault: MpsFault, pods: Sequence[Pod], protocol: int) -> Sequence[Pod]:
    """Return those of a claim's pods that a fault concerns, including ended pods that the fault may have ended.

    With protocol 3 the fault's clients are those of the share, and only their pods are told. All pods are told if there
    was no client when the server was last asked (one may have come since), if the pod of a client is not known, and
    with protocol 2.
    """
    clients = {client.pod_uid for client in fault.clients}
    named = [pod for pod in pods if pod.metadata.uid in clients]
    if protocol == PROTOCOL_3 and fault.kind not in _OF_ALL_PODS and clients and "" not in clients:
        return named
    return [pod for pod in pods if pod in named or may_run(pod)]


def fault_words(fault: MpsFault, gpu: str) -> tuple[str, str]:
    """Return reason and text of the Event."""
    return f"Mps{fault.kind.value}", (
        f"MPS on {gpu}, seen {fault.since}: {fault.message}. What this claim's containers ran on that GPU has ended: "
        "restart those whose programs do not recover by themselves (`kubectl delete pod`)"
    )
