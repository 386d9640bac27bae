"""Which container has which GPUs (kubelet_plugin/prepare/podlist.py)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim
from dracaena.kubelet_plugin.prepare.podlist import (
    annotation_changes,
    pod_annotations,
    podlist_entries,
    unknown_users,
    with_users,
)
from support.plugin import DRIVER, gpu_uuid, make_pod, prepared_claim


def listed(pods: Sequence[Pod], *prepared: PreparedClaim) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(e.name, e.container, e.gpu_list) for e in podlist_entries(pods, prepared)]


def uuids(*numbers: int) -> tuple[str, ...]:
    return tuple(gpu_uuid(n) for n in numbers)


def test_a_container_lists_its_claims_gpus_in_the_order_of_the_allocation() -> None:
    assert listed([make_pod()], prepared_claim("claim", (3, 1))) == [("pod", "main", uuids(3, 1))]


def test_several_containers_and_init_containers_are_listed_sorted() -> None:
    pod = make_pod(containers={"z": [("claim", "")], "a": [("claim", "")], "none": []}, init={"m": [("claim", "")]})
    assert [container for _, container, _ in listed([pod], prepared_claim())] == ["a", "m", "z"]


def test_a_container_that_names_a_request_has_only_its_gpus() -> None:
    claim = prepared_claim("claim", (0,), request="small")
    more = prepared_claim("claim", (1, 2), request="large/four")
    both = dataclasses.replace(claim, devices=(*claim.devices, *more.devices))
    pod = make_pod(containers={"a": [("claim", "small")], "b": [("claim", "large")], "c": [("claim", "other")]})
    assert listed([pod], both) == [("pod", "a", uuids(0)), ("pod", "b", uuids(1, 2))]


def test_a_container_with_two_claims_has_both() -> None:
    pod = make_pod(containers={"main": [("x", ""), ("y", "")]}, claims={"x": "claim-x", "y": "claim-y"})
    entries = podlist_entries([pod], [prepared_claim("claim-y", (2,)), prepared_claim("claim-x", (5,))])
    assert entries[0].gpu_list == uuids(5, 2)
    assert entries[0].claims == ("claim-x-uid", "claim-y-uid")


def test_a_claim_made_from_a_template_is_found_by_its_generated_name() -> None:
    pod = make_pod(generated={"claim": "pod-claim-x7k2p"})
    assert listed([pod], prepared_claim("pod-claim-x7k2p")) == [("pod", "main", uuids(0))]


def test_pods_that_share_a_claim_are_each_listed() -> None:
    claim = with_users(prepared_claim(), frozenset({(ClaimUid("claim-uid"), PodUid("b-uid"))}))
    assert [name for name, _, _ in listed([make_pod("pod"), make_pod("b")], claim)] == ["b", "pod"]


def test_a_pod_that_only_has_the_name_of_a_prepared_claim_is_not_listed() -> None:
    assert listed([make_pod("stranger")], prepared_claim()) == []


def test_pods_that_name_a_prepared_claim_without_being_its_consumer_are_to_be_asked_about() -> None:
    pods = [make_pod(), make_pod("later"), make_pod("other", claims={"x": "y"}), make_pod("ended", phase="Failed")]
    assert unknown_users(pods, [prepared_claim()]) == {"claim-uid": ("later-uid",)}


def test_a_consumer_of_one_claim_is_not_asked_about_for_another_of_that_name() -> None:
    old = prepared_claim("claim", (0,))
    new = dataclasses.replace(
        old, claim=dataclasses.replace(old.claim, uid=ClaimUid("new")), consumers=(PodUid("later-uid"),)
    )
    assert unknown_users([make_pod(), make_pod("later")], [old, new]) == {}


def test_users_are_added_to_their_own_claim_alone() -> None:
    users = frozenset({(ClaimUid("claim-uid"), PodUid("a-uid")), (ClaimUid("other"), PodUid("b-uid"))})
    assert with_users(prepared_claim(), users).consumers == ("a-uid", "pod-uid")


def test_a_claim_that_is_not_prepared_lists_nothing() -> None:
    assert listed([make_pod()]) == []


def test_a_claim_of_the_same_name_in_another_namespace_is_another_claim() -> None:
    claim = prepared_claim()
    elsewhere = dataclasses.replace(claim, claim=dataclasses.replace(claim.claim, namespace="other"))
    assert listed([make_pod()], elsewhere) == []


def test_finished_pods_have_nothing_any_more() -> None:
    assert listed([make_pod(phase="Succeeded"), make_pod("b", phase="Failed")], prepared_claim()) == []


def test_devices_for_admin_access_are_left_out() -> None:
    assert listed([make_pod()], prepared_claim(admin_access=True)) == []


def test_of_two_claims_of_one_name_the_one_reserved_for_the_pod_counts() -> None:
    old = prepared_claim("claim", (0,))
    new = dataclasses.replace(
        prepared_claim("claim", (1,)),
        claim=dataclasses.replace(old.claim, uid=ClaimUid("new")),
        consumers=(PodUid("later-uid"),),
    )
    assert listed([make_pod("later"), make_pod("pod"), make_pod("stranger")], old, new) == [
        ("later", "main", uuids(1)),
        ("pod", "main", uuids(0)),
    ]


def test_annotations_say_per_container_what_each_request_of_each_claim_gave() -> None:
    pod = make_pod(containers={"main": [("claim", "")], "side": [("claim", "")]})
    wanted = pod_annotations(pod, [prepared_claim("claim", (2, 0))], DRIVER)
    entry = {"claim": "claim", "request": "gpus", "uuids": list(uuids(2, 0))}
    assert json.loads(wanted["gpu.dracaena.dev/devices"] or "") == {"main": [entry], "side": [entry]}
    assert wanted["gpu.dracaena.dev/uuids"] == ",".join(uuids(2, 0))


def test_a_pod_without_prepared_claims_has_no_annotations() -> None:
    assert set(pod_annotations(make_pod(), [], DRIVER).values()) == {None}


def test_only_annotations_that_differ_are_changed() -> None:
    wanted = {"d/devices": None, "d/uuids": "GPU-1"}
    pod = make_pod(annotations={"d/uuids": "GPU-1", "mine": "x"})
    assert annotation_changes(pod, wanted) == {}
    assert annotation_changes(pod, {"d/uuids": None}) == {"d/uuids": None}
    assert annotation_changes(make_pod(), wanted) == {"d/uuids": "GPU-1"}
