from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.podclaims import group_consumer, is_for_group, is_made_for
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from support.allocation import claim, pod
from support.bare_cluster import reserved

GROUP = OwnerReference("uid-g", "PodGroup", "g", "scheduling.k8s.io/v1beta1", controller=True)
FOR_GROUP = ConsumerReference("podgroups", "g", "uid-g", "scheduling.k8s.io")


def member(name: str, group: str = "g") -> Pod:
    document: dict[str, Any] = msgspec.to_builtins(pod(name, templates=["t"]))
    document["spec"]["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert(document, Pod)


def of_owner(owner: OwnerReference) -> ResourceClaim:
    made = claim("c")
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner]))


def test_a_claim_of_a_group_is_for_each_of_its_pods_and_reserved_for_the_group() -> None:
    made = of_owner(GROUP)
    for name in ("a", "b"):
        assert is_made_for(made, member(name))
        assert group_consumer(made, member(name)) == FOR_GROUP
    assert group_consumer(made) == FOR_GROUP


@pytest.mark.parametrize(
    "owner",
    [
        msgspec.structs.replace(GROUP, name="other"),
        msgspec.structs.replace(GROUP, controller=False),
        msgspec.structs.replace(GROUP, kind="Workload"),
        msgspec.structs.replace(GROUP, api_version="example.com/v1"),
        msgspec.structs.replace(GROUP, api_version="scheduling.k8s.io.example.com/v1"),
    ],
)
def test_a_claim_of_another_owner_is_not_the_groups(owner: OwnerReference) -> None:
    made = of_owner(owner)
    assert not is_made_for(made, member("a"))
    assert group_consumer(made, member("a")) is None


@pytest.mark.parametrize("alone", [pod("a", templates=["t"]), member("a", group="")])
def test_a_pod_without_a_group_has_no_claim_of_one(alone: Pod) -> None:
    assert not is_made_for(of_owner(GROUP), alone)


def test_a_group_of_another_namespace_is_another_one() -> None:
    made = of_owner(GROUP)
    elsewhere = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, namespace="other"))
    assert not is_made_for(elsewhere, member("a"))


def test_a_claim_that_was_generated_for_a_pod_is_reserved_for_it_in_a_group_too() -> None:
    made = claim("c", owner=member("a"))
    assert is_made_for(made, member("a"))
    assert not is_made_for(made, member("b"))
    assert group_consumer(made) is None


def test_whom_a_reservation_is_for_is_reported_by_its_kind() -> None:
    made = of_owner(GROUP)
    held = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, reserved_for=[FOR_GROUP]))
    assert is_for_group(held)
    assert not is_for_group(reserved(made, member("a")))
    assert not is_for_group(made)
