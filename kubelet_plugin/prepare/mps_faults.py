"""Faults of MPS servers: whom they concern, in which words, and which of them were told already."""

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
"""What concerns pods without a client, too: they cannot connect any more, or only when they are started again."""


class ToldFault(msgspec.Struct, frozen=True):
    """The last fault of a share that was told."""

    sequence: int
    since: str
    """Tells it from a fault of an earlier life of the share: sequences begin anew when a claim is prepared again."""

    @classmethod
    def of(cls, fault: MpsFault) -> ToldFault:
        """Return what is kept of a fault."""
        return cls(fault.sequence, fault.since)


def encode_told(told: Mapping[str, ToldFault]) -> bytes:
    """Return the file of told faults, by the name of their share. Equal ones are equal bytes."""
    return msgspec.json.format(msgspec.json.encode(dict(sorted(told.items()))), indent=1) + b"\n"


def decode_told(data: bytes) -> Mapping[str, ToldFault]:
    """Read that file. Raises BadInputError."""
    try:
        return msgspec.json.decode(data, type=dict[str, ToldFault])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"the file of told MPS faults does not decode: {error}") from error


def pods_to_tell(fault: MpsFault, pods: Sequence[Pod], protocol: int) -> Sequence[Pod]:
    """Return those of a claim's pods that a fault concerns; of pods that have ended only those that it may have ended.

    With protocol 3 its clients are those of the share, and their pods are told. All pods are where there was no client
    when the server was last asked (one may have come since), where the pod of one is not known, and with protocol 2.
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
        "restart those whose programs do not begin anew by themselves (`kubectl delete pod`)"
    )
