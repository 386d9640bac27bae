from __future__ import annotations

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.podclaims import PodClaim, pod_claims
from support.allocation import pod


def with_statuses(base: Pod, *statuses: dict[str, str]) -> Pod:
    document = msgspec.to_builtins(base) | {"status": {"phase": "Pending", "resourceClaimStatuses": list(statuses)}}
    return msgspec.convert(document, Pod)


def test_claims_of_a_pod_are_named_or_generated_or_not_needed() -> None:
    bare = pod("p", "named", templates=["gpus", "nothing"])
    assert pod_claims(bare) == (
        PodClaim("c0", "default", "named", generated=False),
        PodClaim("gpus", "default", None, generated=True),
        PodClaim("nothing", "default", None, generated=True),
    )
    made = with_statuses(bare, {"name": "gpus", "resourceClaimName": "p-gpus-x"}, {"name": "nothing"})
    assert pod_claims(made) == (
        PodClaim("c0", "default", "named", generated=False),
        PodClaim("gpus", "default", "p-gpus-x", generated=True),
    )
    assert [claim.key for claim in pod_claims(made)] == ["default/named", "default/p-gpus-x"]
