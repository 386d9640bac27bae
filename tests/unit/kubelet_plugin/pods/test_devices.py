from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.api.podlist import join_lines
from dracaena.kubelet_plugin.pods.devices import PodDevicesCache
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.prepare.reports.podlist import by_name, pod_entries
from support.plugin import DRIVER, make_pod, prepared_claim
from support.podlists import encode_podlist

PODS = tuple(f"pod-{n}" for n in range(4))
CLAIMS = tuple(f"claim-{n}" for n in range(3))


def pod(name: str, claims: tuple[str, ...], phase: str, version: int) -> Pod:
    uses = [(claim, "") for claim in claims]
    return make_pod(name, {"main": uses}, claims={claim: claim for claim in claims}, phase=phase, version=str(version))


def claim(name: str, gpu: int, users: frozenset[str]) -> PreparedClaim:
    consumers = tuple(PodUid(f"{user}-uid") for user in sorted(users))
    return dataclasses.replace(prepared_claim(name, (gpu,)), consumers=consumers)


some_claims = st.lists(st.sampled_from(CLAIMS), unique=True).map(tuple)
pods = st.dictionaries(st.sampled_from(PODS), st.tuples(some_claims, st.sampled_from(["Running", "Failed"])))
prepared = st.dictionaries(
    st.sampled_from(CLAIMS), st.tuples(st.integers(0, 7), st.frozensets(st.sampled_from(PODS))), max_size=3
)


@given(st.lists(st.tuples(pods, prepared, st.booleans()), min_size=1, max_size=5))
def test_what_is_kept_is_what_is_worked_out_anew(
    looks: list[tuple[dict[str, tuple[tuple[str, ...], str]], dict[str, tuple[int, frozenset[str]]], bool]],
) -> None:
    kept = PodDevicesCache(DRIVER, GpuNameFormat.UUID)
    known: dict[tuple[str, tuple[str, ...], str], Pod] = {}
    for at, (wanted_pods, wanted_claims, told_anew) in enumerate(looks):
        if told_anew:  # the watch gives new objects, which may say the same
            known.clear()
        shown = [
            known.setdefault((name, claims, phase), pod(name, claims, phase, at))
            for name, (claims, phase) in sorted(wanted_pods.items())
        ]
        given_now = [claim(name, gpu, users) for name, (gpu, users) in sorted(wanted_claims.items())]
        found = kept.of(shown, given_now)
        assert found == PodDevicesCache(DRIVER, GpuNameFormat.UUID).of(shown, given_now)
        entries = [entry for each in shown for entry in pod_entries(each, by_name(given_now))]
        assert join_lines(line for each in found for line in each.lines) == encode_podlist(entries)


def test_a_claim_that_is_read_again_stays_known_when_another_takes_its_name() -> None:
    pod_devices = PodDevicesCache(DRIVER, GpuNameFormat.UUID)
    user = make_pod("user", claims={"claim": "a"})
    first = dataclasses.replace(prepared_claim("a", (0,)), consumers=(PodUid("user-uid"),))
    read_again = dataclasses.replace(first)
    second = dataclasses.replace(
        first, claim=dataclasses.replace(first.claim, uid=ClaimUid("z-uid")), consumers=(PodUid("other-uid"),)
    )
    pod_devices.of([user], [first])
    lines = pod_devices.of([user], [read_again])[0].lines
    assert len(lines) == 1
    assert pod_devices.of([user], [read_again, second])[0].lines == lines
    assert pod_devices.of([user], [second])[0].lines == ()


def test_a_pod_is_told_when_it_has_the_annotations_that_were_worked_out_last() -> None:
    pod_devices = PodDevicesCache(DRIVER, GpuNameFormat.UUID)
    bare = make_pod("user", claims={"claim": "a"})
    a = dataclasses.replace(prepared_claim("a", (0,)), consumers=(PodUid("user-uid"),))
    assert not pod_devices.are_told(bare)  # nothing is known of it
    wanted = pod_devices.of([bare], [a])[0].wanted
    assert not pod_devices.are_told(bare)
    noted = make_pod("user", claims={"claim": "a"}, annotations={key: value or "" for key, value in wanted.items()})
    assert pod_devices.are_told(noted)
    pod_devices.of([bare], [])
    assert pod_devices.are_told(bare)
    assert not pod_devices.are_told(noted)


def test_a_pod_of_which_nothing_changed_is_not_worked_out_again() -> None:
    pod_devices = PodDevicesCache(DRIVER, GpuNameFormat.UUID)
    same, changing = make_pod("same", claims={"claim": "a"}), make_pod("changing", claims={"claim": "b"})
    a = dataclasses.replace(prepared_claim("a", (0,)), consumers=(PodUid("same-uid"),))
    b = dataclasses.replace(prepared_claim("b", (1,)), consumers=(PodUid("changing-uid"),))
    first = pod_devices.of([same, changing], [a, b])
    labelled = msgspec.structs.replace(changing.metadata, labels={"a": "b"})
    later = msgspec.structs.replace(changing, metadata=labelled)
    second = pod_devices.of([same, later], [a, b])
    assert second[0] is first[0]
    assert second[1] is not first[1]
    assert pod_devices.of([same, later], [a])[1].lines == ()
