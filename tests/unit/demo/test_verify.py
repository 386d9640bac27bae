"""The checks of the nodes' folders find what contradicts the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dracaena.api.mig import mig_device_name
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo import verify
from dracaena.demo.kubelet import NodeFolders
from dracaena.demo.observation import Observation, read_observation
from support.observation import (
    CUT_MACHINE,
    LARGE,
    SHARED_MACHINE,
    SMALL,
    UUIDS,
    claim,
    cut_slice,
    one_pod,
    part,
    pod,
    share,
    slice_of,
)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, NodeFolders]:
    places = NodeFolders(tmp_path / "kubelet", tmp_path / "cdi")
    places.cdi_root.mkdir()
    places.podlist.parent.mkdir(parents=True)
    places.podlist.write_text("[]")
    return {"n1": places}


def running() -> Observation:
    return one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1))


def write_spec(places: NodeFolders, uid: str, *ordinals: int) -> None:
    devices = [{"name": f"{uid}-{gpu_device_name(UUIDS[n])}", "containerEdits": {}} for n in ordinals]
    document = {"cdiVersion": "0.5.0", "kind": "gpu.dracaena.dev/claim", "devices": devices}
    (places.cdi_root / f"{uid}.json").write_text(json.dumps(document))


def write_podlist(places: NodeFolders, *uuids: str) -> None:
    entry = {"name": "p1", "namespace": "default", "container": "main", "gpu_list": uuids}
    places.podlist.write_text(json.dumps([entry]))


def test_a_claim_needs_a_spec_with_all_its_devices_and_no_other_spec_may_lie_there(
    folders: dict[str, NodeFolders],
) -> None:
    write_spec(folders["n1"], "c1-uid", 0)
    assert "unresolvable" in verify.cdi_specs(running(), folders)[0]
    write_spec(folders["n1"], "c1-uid", 0, 1)
    assert verify.cdi_specs(running(), folders) == ()
    write_spec(folders["n1"], "old-uid", 2)
    assert "1 claims are in use" in verify.cdi_specs(running(), folders)[0]


def test_the_podlist_must_name_each_pod_with_its_gpus(folders: dict[str, NodeFolders]) -> None:
    assert len(verify.podlists(running(), folders)) == 1
    write_podlist(folders["n1"], UUIDS[0])
    assert len(verify.podlists(running(), folders)) == 1
    write_podlist(folders["n1"], UUIDS[1], UUIDS[0])
    assert verify.podlists(running(), folders) == ()
    folders["n1"].podlist.unlink()
    assert len(verify.podlists(running(), folders)) == 1


def test_nothing_may_be_left_when_all_is_free(folders: dict[str, NodeFolders]) -> None:
    nothing = Observation((), (), (), ())
    assert verify.all_free(nothing, folders) == ()
    checkpoint = folders["n1"].plugin_data / "claims" / "c1-uid.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("{}")
    assert verify.all_free(nothing, folders) == (f"{checkpoint} is left",)
    seen = running()
    problems = verify.all_free(Observation(seen.nodes, seen.pods, seen.claims, ()), folders)
    assert any("pod p1 is still there" in problem for problem in problems)
    assert any("2 GPUs in use" in problem for problem in problems)


def shares_of(*claims: ResourceClaim) -> Observation:
    pods = [pod(f"p{at}", one.metadata.name, node="n1", phase="Running") for at, one in enumerate(claims, 1)]
    return read_observation([slice_of("n1", machine=SHARED_MACHINE)], claims, pods, ())


def test_two_claims_may_hold_a_gpu_in_shares_that_it_has_room_for() -> None:
    assert verify.held_once(shares_of(share("a", 0, "8Gi", 50), share("b", 0, "8Gi", 50, pod="p2"))) == ()
    (problem,) = verify.held_once(shares_of(share("a", 0, "9Gi", 50), share("b", 0, "8Gi", 50, pod="p2")))
    assert "its shares take 18253611008 of memory, and it has 17179869184" in problem
    (problem,) = verify.held_once(shares_of(share("a", 0, "8Gi", 51), share("b", 0, "8Gi", 50, pod="p2")))
    assert "its shares take 101 of cores, and it has 100" in problem
    (problem,) = verify.held_once(shares_of(share("a", 0, "8Gi", 50), claim("b", 0, pod="p2")))
    assert "is held 2 times" in problem


def cut_among(*devices: str) -> Observation:
    claims = [part(f"c{at}", device, pod=f"p{at}") for at, device in enumerate(devices)]
    return read_observation([cut_slice("n1")], claims, [], ())


def test_no_two_claims_may_have_the_same_slices_of_a_gpu() -> None:
    gpu = CUT_MACHINE.gpus[0].uuid
    whole, inside, behind = gpu_device_name(gpu), mig_device_name(gpu, "1g.10gb", 3), mig_device_name(gpu, "1g.10gb", 4)
    for apart in ([whole], [LARGE, SMALL], [LARGE, behind, SMALL]):
        assert verify.held_once(cut_among(*apart)) == ()
    for first, second in ((whole, SMALL), (LARGE, whole), (LARGE, inside)):
        seen = cut_among(first, second)
        assert sorted(seen.nodes[0].holders[0]) == ["p0", "p1"]
        (problem,) = verify.held_once(seen)
        one, other = sorted((first, second))
        assert problem == f"n1/{one} and {other} are held, and have a part of one GPU in common"
    assert "is held 2 times" in verify.held_once(cut_among(SMALL, SMALL))[0]


def test_the_podlist_must_name_each_share_with_its_amounts(folders: dict[str, NodeFolders]) -> None:
    seen = shares_of(share("a", 0, "8Gi", 50))

    def say(**changes: object) -> None:
        one = {"gpu": UUIDS[0], "share_id": "share-of-a", "memory": "8Gi", "cores": 50, **changes}
        entry = {"name": "p1", "namespace": "default", "container": "main", "gpu_list": [UUIDS[0]], "shares": [one]}
        folders["n1"].podlist.write_text(json.dumps([entry]))

    assert len(verify.shares(seen, folders)) == 1
    say(memory="8192Mi")
    assert verify.shares(seen, folders) == ()
    for change in ({"memory": "9Gi"}, {"cores": 0}, {"gpu": UUIDS[1]}, {"share_id": "another"}):
        say(**change)
        assert len(verify.shares(seen, folders)) == 1
    folders["n1"].podlist.unlink()
    assert len(verify.shares(seen, folders)) == 1


def test_each_part_needs_its_mig_device_and_no_other_may_lie_there(folders: dict[str, NodeFolders]) -> None:
    seen = read_observation([cut_slice("n1")], [part("a", SMALL)], [pod("p1", "a", node="n1")], ())
    assert len(verify.mig_devices(seen, folders)) == 1
    path = folders["n1"].mig_instances / f"{CUT_MACHINE.gpus[0].uuid}.json"
    path.parent.mkdir(parents=True)
    instance = {"profile": "1g.10gb", "start": 6, "size": 1}
    for instances, right in (([instance], True), ([{**instance, "start": 5}], False), ([instance, instance], False)):
        path.write_text(json.dumps({"instances": instances}))
        assert (verify.mig_devices(seen, folders) == ()) is right
