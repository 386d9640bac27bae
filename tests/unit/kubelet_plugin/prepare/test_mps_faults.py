"""Whom a fault of an MPS server concerns, in which words, and the file of what was told."""

from __future__ import annotations

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.mps import MpsClient, MpsFault, MpsFaultKind
from dracaena.kubelet_plugin.prepare.mps_faults import (
    ToldFault,
    decode_told,
    encode_told,
    fault_words,
    pods_to_tell,
)
from support.plugin import make_pod

PODS = [make_pod("a"), make_pod("b"), make_pod("ended", phase="Failed")]


def fault(*pods: str, kind: MpsFaultKind = MpsFaultKind.SERVER_FAULT) -> MpsFault:
    clients = tuple(MpsClient(pid=100 + at, pod_uid=uid) for at, uid in enumerate(pods))
    return MpsFault(sequence=1, kind=kind, message="what was seen", since="2026-11-26T12:00:00Z", clients=clients)


def names(found: MpsFault, protocol: int) -> list[str]:
    return [pod.metadata.name for pod in pods_to_tell(found, PODS, protocol)]


@pytest.mark.parametrize("kind", [MpsFaultKind.SERVER_FAULT, MpsFaultKind.SERVER_DIED])
def test_with_protocol_3_the_pods_of_the_clients_are_told_those_that_it_ended_too(kind: MpsFaultKind) -> None:
    assert names(fault("b-uid", kind=kind), 3) == ["b"]
    assert names(fault("b-uid", "ended-uid", kind=kind), 3) == ["b", "ended"]
    assert names(fault("another-uid", kind=kind), 3) == []


@pytest.mark.parametrize("protocol", [0, 2])
def test_with_protocol_2_or_an_unknown_one_all_pods_of_the_claim_are_told(protocol: int) -> None:
    assert names(fault("b-uid"), protocol) == ["a", "b"]
    assert names(fault("ended-uid"), protocol) == ["a", "b", "ended"]


@pytest.mark.parametrize("clients", [(), ("b-uid", "")], ids=["no client was seen", "whose one is is not known"])
def test_where_it_is_not_known_who_was_hit_all_pods_are_told(clients: tuple[str, ...]) -> None:
    assert names(fault(*clients), 3) == ["a", "b"]


@pytest.mark.parametrize("kind", [MpsFaultKind.DAEMON_DIED, MpsFaultKind.GPU_LOST])
def test_what_keeps_everybody_from_connecting_is_told_to_all(kind: MpsFaultKind) -> None:
    assert names(fault("b-uid", kind=kind), 3) == ["a", "b"]


def test_the_words_say_what_was_seen_when_where_and_what_to_do() -> None:
    reason, text = fault_words(fault(), "GPU-1")
    assert reason == "MpsServerFault"
    assert text.startswith("MPS on GPU-1, seen 2026-11-26T12:00:00Z: what was seen. What this claim's containers ran")
    assert "kubectl delete pod" in text


def test_what_was_told_is_read_as_it_was_written() -> None:
    told = {"s_2": ToldFault(3, "then"), "s_1": ToldFault.of(fault())}
    assert decode_told(encode_told(told)) == told
    assert encode_told(told) == encode_told(dict(reversed(told.items())))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"s_1": 3}', b'{"s_1": {"sequence": "x"}}', b"\xff"])
def test_a_file_that_cannot_be_read_is_said_to_be_so(data: bytes) -> None:
    with pytest.raises(BadInputError, match="reported MPS faults does not decode"):
        decode_told(data)
