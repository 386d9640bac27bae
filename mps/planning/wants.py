"""From the requests on disk to what each GPU should have, and which requests are refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dracaena.api.mps import MpsShareRequest, share_name
from dracaena.mps.planning.state import WantedGpu
from dracaena.mps.protocol.seen import ShareLimits

ROOT_UID = 0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One request file: what it asks, or why it cannot be read."""

    digest: str
    request: MpsShareRequest | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MpsWants:
    """What all requests add up to."""

    gpus: Mapping[str, WantedGpu]
    """UUID → what it should have, sorted; none without shares."""
    refusals: Mapping[str, str]
    """Share → why it is refused."""


def wants(
    requests: Mapping[str, ReadRequest], *, boot_id: str, multi_user: bool, admitted: frozenset[str] = frozenset()
) -> MpsWants:
    """Sort requests by GPU. `admitted` are shares that were served before: if a GPU can only serve one user's clients,
    their user comes first.
    """
    refusals: dict[str, str] = {}
    by_gpu: dict[str, dict[str, MpsShareRequest]] = {}
    for name in sorted(requests):
        request = requests[name].request
        problem = requests[name].problem or _problem(name, request, boot_id)
        if problem or request is None:
            refusals[name] = problem
        else:
            by_gpu.setdefault(request.gpu, {})[name] = request
    gpus = {}
    for gpu in sorted(by_gpu):
        uid = ROOT_UID if multi_user else _user(by_gpu[gpu], admitted, refusals)
        shares = {name: _limits(request) for name, request in by_gpu[gpu].items() if name not in refusals}
        if shares:
            gpus[gpu] = WantedGpu(shares, uid)
    return MpsWants(gpus, refusals)


def _problem(name: str, request: MpsShareRequest | None, boot_id: str) -> str:
    if request is None:
        return "the request cannot be read"
    if request.boot_id != boot_id:
        return "the request is of an earlier boot: the claim must be prepared again"
    expected = share_name(request.gpu, request.claim_uid, request.share_id)
    if name != expected:
        return f"the request is in the file of another share: {name}, expected {expected}"
    return ""


def _user(requests: Mapping[str, MpsShareRequest], admitted: frozenset[str], refusals: dict[str, str]) -> int:
    """Return the one user whose clients a GPU serves, and refuse the shares of all others."""
    unknown = [name for name, request in requests.items() if request.client_uid is None]
    for name in unknown:
        refusals[name] = (
            "it is not known which user its containers run as, and without multi-user mode a GPU serves the clients of "
            "one user: set runAsUser in the pod, or mps.settings.multi-user=true in the chart"
        )
    known = {name: request.client_uid for name, request in requests.items() if request.client_uid is not None}
    if not known:
        return ROOT_UID
    first = min(known, key=lambda name: (name not in admitted, name))
    uid = known[first]
    for name, other in known.items():
        if other != uid:
            refusals[name] = (
                f"its containers run as user {other}, and this GPU serves the clients of user {uid} as long as that "
                "user has a share of it; mps.settings.multi-user=true in the chart lets users share one GPU"
            )
    return uid


def _limits(request: MpsShareRequest) -> ShareLimits:
    return ShareLimits(request.thread_percentage, request.pinned_memory_mib)
