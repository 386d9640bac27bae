from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from dracaena.api.names import DeviceName
from dracaena.api.objects import Container, Pod, VolumeMount
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect
from dracaena.kubelet_plugin.prepare.mps_containers import unfit_container
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.plugin import device_name, make_pod, prepared_claim


def by_mps(name: str, *gpus: int, request: str = "gpus", mps: bool = True) -> PreparedClaim:
    claim = prepared_claim(name, gpus, share_id=f"of-{name}", request=request)
    effects = [Effect(MPS_SHARE, device_name(n), device_name(n), f"of-{name}") for n in gpus if mps]
    return replace(claim, wants=tuple(effects))


FIRST, SECOND = by_mps("first", 0), by_mps("second", 1)
BOTH = {"a": "first", "b": "second"}


@pytest.mark.parametrize(
    ("containers", "init", "crowded"),
    [
        ({"main": [("a", ""), ("b", "")]}, {}, "main"),
        ({"main": [("a", "gpus"), ("b", "gpus")]}, {}, "main"),
        ({"main": [("a", "")], "side": [("b", "")]}, {}, None),
        ({"main": [("a", ""), ("a", "gpus")]}, {}, None),
        ({"main": [("a", "")]}, {"before": [("a", ""), ("b", "")]}, "before"),
        ({"main": [("a", "other"), ("b", "")]}, {}, None),
    ],
)
def test_a_container_with_shares_of_two_claims_is_named(
    containers: dict[str, list[tuple[str, str]]], init: dict[str, list[tuple[str, str]]], crowded: str | None
) -> None:
    pod = make_pod(containers=containers, init=init, claims=BOTH)
    for plan, other in ((FIRST, SECOND), (SECOND, FIRST)):
        found = unfit_container(plan, (other,), (pod,), ())
        if crowded is None:
            assert found is None
        else:
            assert found is not None
            assert found.startswith(f"container {crowded} of pod default/pod would have 2 shares by MPS (")
            assert all(device_name(n) in found for n in (0, 1))


def test_two_shares_of_one_claim_are_for_two_containers() -> None:
    two = by_mps("two", 0, 1)
    one_each = replace(
        two,
        devices=tuple(replace(d, request=f"r{n}") for n, d in enumerate(two.devices)),
    )
    together = make_pod(containers={"main": [("a", "")]}, claims={"a": "two"})
    apart = make_pod(containers={"main": [("a", "r0")], "side": [("a", "r1")]}, claims={"a": "two"})
    assert unfit_container(one_each, (), (together,), ()) is not None
    assert unfit_container(one_each, (), (apart,), ()) is None
    assert unfit_container(two, (), (together,), ()) is not None


def test_what_has_no_mps_and_what_was_there_before_is_not_counted() -> None:
    pod = make_pod(containers={"main": [("a", ""), ("b", "")]}, claims=BOTH)
    assert unfit_container(FIRST, (FIRST,), (pod,), ()) is None
    assert unfit_container(FIRST, (SECOND,), (), ()) is None
    plain = (by_mps("first", 0, mps=False), by_mps("second", 1, mps=False))
    assert unfit_container(plain[0], plain[1:], (pod,), ("/dev/shm",)) is None
    assert unfit_container(by_mps("third", 2, mps=False), (FIRST, SECOND), (pod,), ()) is None, "not its matter"


OTHERS = {
    "a whole GPU": prepared_claim("second", (1,)),
    "a share without MPS": by_mps("second", 1, mps=False),
    "a part of a GPU": prepared_claim("second", (1,), device=DeviceName("gpu-1-mig-1g-10gb-0")),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_share_beside_anything_else_is_refused_whichever_comes_first(other: PreparedClaim) -> None:
    """A client of MPS sees the GPU of its server alone: the other would be held, and of no use."""
    together = make_pod(containers={"main": [("a", ""), ("b", "")]}, claims=BOTH)
    apart = make_pod(containers={"main": [("a", "")], "side": [("b", "")]}, claims=BOTH)
    for plan, held in ((FIRST, other), (other, FIRST)):
        found = unfit_container(plan, (held,), (together,), ())
        assert found is not None
        assert found.startswith("container main of pod default/pod would have a share by MPS (")
        assert f" and {other.devices[0].device}, " in found
        assert unfit_container(plan, (held,), (apart,), ()) is None


def test_a_share_beside_another_request_of_its_claim_is_refused() -> None:
    two = by_mps("two", 0, 1)
    two = replace(
        two,
        devices=tuple(replace(d, request=f"r{n}") for n, d in enumerate(two.devices)),
        wants=two.wants[:1],
    )
    together = make_pod(containers={"main": [("a", "")]}, claims={"a": "two"})
    apart = make_pod(containers={"main": [("a", "r0")], "side": [("a", "r1")]}, claims={"a": "two"})
    assert "a share by MPS" in str(unfit_container(two, (), (together,), ()))
    assert unfit_container(two, (), (apart,), ()) is None


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/dev//shm", "/tmp/../dev/shm"])
def test_a_pods_own_volume_is_not_silently_replaced(path: str) -> None:
    pod = make_pod(containers={"main": [("a", "")], "side": []}, claims={"a": "first"})
    main, side = pod.spec.containers

    def mounting(*containers: Container) -> Pod:
        return replace_struct(pod, spec=replace_struct(pod.spec, containers=list(containers)))

    def at(container: Container) -> Container:
        return replace_struct(container, volume_mounts=[VolumeMount("/data"), VolumeMount(path)])

    assert unfit_container(FIRST, (), (mounting(at(main), side),), ("/dev/shm",)) == (
        f"container main of pod default/pod mounts a volume of its own at {path}, where a share by MPS on this node "
        "needs the folder of its GPU's server: leave out that volume mount"
    )
    assert unfit_container(FIRST, (), (mounting(at(main), side),), ("/tmp/nvidia-mps",)) is None
    assert unfit_container(FIRST, (), (mounting(main, at(side)),), ("/dev/shm",)) is None
