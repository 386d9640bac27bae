"""Rules about where other pods run, in the cluster: what is decided, what is said, and who is woken when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.objects import (
    Namespace,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
    VolumeClaimReference,
    VolumeClaimSpec,
    VolumeSpec,
    VolumeStatus,
)
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.state.answers import Behind
from support.allocation import blocks, claim, device_class, machine, node, pod, pool_slice, request
from support.bare_cluster import bare_cluster, decide
from support.reconciling import Bench as ReconcilerBench

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def labelled(made: Pod, **labels: str) -> Pod:
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


def app(name: str, key: str = "zone", **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": name}}, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


class Bench:
    """Nodes a and b in zones of their own."""

    def __init__(self, **zones: str) -> None:
        self.woken: list[str] = []
        self.cluster = bare_cluster(self.woken.append)
        self.cluster.intake.class_changed(None, device_class())
        for name, zone in (zones or {"a": "x", "b": "y"}).items():
            self.cluster.intake.node_changed(None, node(name, labels={"zone": zone}))
            self.cluster.intake.slice_changed(None, pool_slice(name, FOUR))

    def run(self, name: str, on: str, affinity: dict[str, Any] | None = None, **labels: str) -> Pod:
        made = labelled(pod(name, nodeName=on, affinity=affinity or {}), **labels)
        self.cluster.intake.pod_changed(None, made)
        return made

    def decide(
        self,
        name: str,
        affinity: dict[str, Any] | None = None,
        spread: dict[str, Any] | None = None,
        count: int = 1,
        **labels: str,
    ) -> object:
        if self.cluster.pod(f"default/{name}") is None:
            rules: dict[str, Any] = {
                "affinity": affinity or {},
                "topologySpreadConstraints": [] if spread is None else [spread],
            }
            made = labelled(pod(name, f"of-{name}", **rules), **labels)
            self.cluster.intake.pod_changed(None, made)
            self.cluster.intake.claim_changed(None, claim(f"of-{name}", request(count=count)))
        waiting, asked = self.cluster.pod(f"default/{name}"), self.cluster.claim(f"default/of-{name}")
        assert waiting is not None
        assert asked is not None
        decision = decide(self.cluster, waiting, asked)
        self.cluster.check()
        self.woken.clear()
        return decision

    def why(self, name: str) -> str | None:
        waiting, asked = self.cluster.pod(f"default/{name}"), self.cluster.claim(f"default/of-{name}")
        assert waiting is not None
        assert asked is not None
        found = self.cluster.explain(waiting, [asked], now_s=1_000.0)
        return None if found is None else found.text

    def take_woken(self) -> list[str]:
        woken, self.woken[:] = list(self.woken), []
        return woken


def node_of(decision: object) -> str:
    assert isinstance(decision, Allocation)
    return decision.node


def test_a_pod_goes_where_the_pod_is_that_it_wants_to_be_near() -> None:
    bench = Bench()
    bench.run("db", "b", app="db")
    assert node_of(bench.decide("p", near(app("db")))) == "b"


def test_a_pod_that_waits_for_a_neighbour_is_woken_when_one_comes_and_not_when_others_do() -> None:
    bench = Bench()
    assert isinstance(bench.decide("p", near(app("db"))), NoFit)
    assert bench.why("p") == "0/2 nodes fit: 2 not matching the pod's podAffinity (a, b)"
    bench.run("web", "a", app="web")
    assert bench.take_woken() == []
    db = bench.run("db", "b", app="db")
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"
    bench.cluster.intake.pod_changed(db, None)
    assert bench.take_woken() == []


def test_a_pod_that_keeps_away_from_others_is_woken_when_they_go_and_not_when_they_come() -> None:
    bench = Bench()
    there = [bench.run("one", "a", app="web"), bench.run("two", "b", app="web")]
    assert isinstance(bench.decide("p", apart(app("web"))), NoFit)
    assert bench.why("p") == "0/2 nodes fit: 2 not matching the pod's podAntiAffinity (a, b)"
    bench.run("three", "a", app="web")
    assert bench.take_woken() == []
    bench.cluster.intake.pod_changed(there[1], None)
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"


def test_a_pod_that_others_keep_away_is_woken_when_these_go() -> None:
    bench = Bench()
    there = [bench.run("one", "a", apart(app("p"))), bench.run("two", "b", apart(app("p")))]
    assert isinstance(bench.decide("p", app="p"), NoFit)
    assert bench.why("p") == "0/2 nodes fit: 2 where another pod's podAntiAffinity keeps this one away (a, b)"
    assert node_of(bench.decide("q", app="q")) == "a"
    bench.cluster.intake.pod_changed(there[0], None)
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "a"


def test_what_was_decided_counts_before_it_is_bound() -> None:
    bench = Bench()
    like = apart(app("p"))
    assert node_of(bench.decide("p", like, app="p")) == "a"
    assert node_of(bench.decide("q", like, app="p")) == "b"
    assert isinstance(bench.decide("r", like, app="p"), NoFit)
    assert node_of(bench.decide("s", near(app("p")))) == "a"


def test_labels_of_a_namespace_wake_who_names_it_by_them() -> None:
    bench = Bench()
    bench.run("db", "b", app="db")
    before = Namespace(metadata=ObjectMeta(name="default"))
    bench.cluster.intake.namespace_changed(None, before)
    by_team = app("db", namespaceSelector={"matchLabels": {"team": "x"}})
    assert isinstance(bench.decide("p", near(by_team)), NoFit)
    bench.cluster.intake.namespace_changed(before, Namespace(metadata=ObjectMeta(name="default", labels={"team": "x"})))
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"


def test_equal_pods_with_other_labels_do_not_wait_behind_each_other_where_labels_decide() -> None:
    bench = Bench()
    bench.run("one", "a", apart(app("p")))
    bench.run("two", "b", apart(app("p")))
    assert isinstance(bench.decide("p", app="p", index="0"), NoFit)
    assert node_of(bench.decide("q", app="q", index="1")) == "a"
    assert isinstance(bench.decide("r", app="p", index="2"), Behind), "by index nobody decides"


def test_a_pod_that_does_not_wait_any_more_is_not_woken() -> None:
    bench = Bench()
    assert isinstance(bench.decide("p", near(app("db"))), NoFit)
    bench.cluster.leave("default/p")
    bench.run("db", "b", app="db")
    assert bench.take_woken() == []


def test_a_spread_pod_goes_to_the_emptier_domain_and_waits_until_more_come_there_or_fewer_are_here() -> None:
    bench = Bench()
    bench.cluster.intake.slice_changed(
        pool_slice("b", FOUR), None
    )  # nothing to give in zone y, which counts all the same
    evenly = {**app("p"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    assert node_of(bench.decide("p", spread=evenly, app="p")) == "a"
    assert isinstance(bench.decide("q", spread=evenly, app="p"), NoFit)
    assert bench.why("q") == (
        "0/2 nodes fit: 1 not matching the pod's topologySpreadConstraints (a); "
        "1 without usable GPUs of gpu.dracaena.dev (b)"
    )
    bench.run("web", "b", app="web")
    assert bench.take_woken() == []
    bench.run("one", "b", app="p")
    assert bench.take_woken() == ["default/q"]
    assert node_of(bench.decide("q")) == "a"
    assert isinstance(bench.decide("r", spread=evenly, app="p"), NoFit)
    bench.cluster.intake.pod_changed(bench.cluster.pod("default/p"), None)
    assert "default/r" in bench.take_woken()


def volume_claim(name: str, volume: str = "", kind: str = "") -> PersistentVolumeClaim:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=annotations)
    return PersistentVolumeClaim(meta, VolumeClaimSpec(volume_name=volume, storage_class_name=kind))


def volume(name: str, zone: str, claim_name: str = "", kind: str = "") -> PersistentVolume:
    rule = {"key": "zone", "operator": "In", "values": [zone]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}
    ref = VolumeClaimReference(claim_name, "default") if claim_name else None
    spec = VolumeSpec(claim_ref=ref, node_affinity=affinity, storage_class_name=kind)
    return PersistentVolume(ObjectMeta(name=name), spec, VolumeStatus("Available"))


def with_volume(name: str, claim_name: str) -> Pod:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    return pod(name, f"of-{name}", volumes=volumes)


def test_a_pod_goes_where_its_volume_is_and_waits_until_it_is_bound() -> None:
    bench = Bench()
    bench.cluster.intake.volume_claim_changed(None, volume_claim("data"))
    bench.cluster.intake.pod_changed(None, with_volume("p", "data"))
    bench.cluster.intake.claim_changed(None, claim("of-p"))
    assert isinstance(bench.decide("p"), NoFit)
    assert bench.why("p") == "0/2 nodes fit: 2 while a PersistentVolumeClaim of the pod is not bound (a, b)"
    bench.cluster.intake.volume_claim_changed(None, volume_claim("other"))
    assert bench.take_woken() == []
    bench.cluster.intake.volume_claim_changed(volume_claim("data"), volume_claim("data", "v"))
    assert bench.take_woken() == ["default/p"]
    assert isinstance(bench.decide("p"), NoFit)
    bench.cluster.intake.volume_changed(None, volume("v", "y", "data"))
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"


def test_a_pod_whose_volume_is_chosen_with_its_node_waits_for_one_to_be_there() -> None:
    bench = Bench()
    bench.cluster.intake.volume_claim_changed(None, volume_claim("data", kind="local"))
    bench.cluster.intake.pod_changed(None, with_volume("p", "data"))
    bench.cluster.intake.claim_changed(None, claim("of-p"))
    assert isinstance(bench.decide("p"), NoFit)
    kind = StorageClass(ObjectMeta("local"), "kubernetes.io/no-provisioner", "WaitForFirstConsumer")
    bench.cluster.intake.storage_class_changed(None, kind)
    assert bench.take_woken() == ["default/p"]
    assert isinstance(bench.decide("p"), NoFit)
    assert bench.why("p") == (
        "0/2 nodes fit: 2 without a PersistentVolume that the pod's claims could have there (a, b)"
    )
    bench.cluster.intake.volume_changed(None, volume("v", "y", kind="local"))
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"


def test_a_pod_that_waits_for_the_only_user_of_a_volume_is_woken_when_that_goes() -> None:
    bench = Bench()
    spec = VolumeClaimSpec(["ReadWriteOncePod"], volume_name="v")
    once = msgspec.structs.replace(volume_claim("data", "v"), spec=spec)
    bench.cluster.intake.volume_claim_changed(None, once)
    bench.cluster.intake.volume_changed(None, volume("v", "y", "data"))
    user = with_volume("user", "data")
    user = msgspec.structs.replace(user, spec=msgspec.structs.replace(user.spec, node_name="b", resource_claims=[]))
    bench.cluster.intake.pod_changed(None, user)
    bench.cluster.intake.pod_changed(None, with_volume("p", "data"))
    bench.cluster.intake.claim_changed(None, claim("of-p"))
    assert isinstance(bench.decide("p"), NoFit)
    assert bench.why("p") == "0/2 nodes fit: 2 while another pod uses a ReadWriteOncePod volume of this pod (a, b)"
    bench.cluster.intake.pod_changed(user, None)
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "b"


def test_a_rule_that_cannot_be_read_is_reported_to_its_author() -> None:
    bench = Bench()
    odd = {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Resembles"}]}}
    refused = bench.decide("p", near(odd))
    assert "Resembles" in str(refused)


@pytest.mark.parametrize("count", [40])
def test_a_pod_that_only_the_last_of_many_nodes_can_take_is_allocated_there_at_the_first_try(count: int) -> None:
    names = [f"n{number:03}" for number in range(count)]
    bench = ReconcilerBench(**dict.fromkeys(names, FOUR))
    for name in names:
        bench.cluster.intake.node_changed(node(name), node(name, labels={"zone": name}))
    bench.add(labelled(pod("db", nodeName=names[-1]), app="db"))
    bench.add(claim("c", request(count=2)), pod("p", "c", affinity=near(app("db"))))
    bench.run()
    allocation = bench.api.claims["default/c"].status.allocation
    assert allocation is not None
    assert allocation.devices.results[0].pool == names[-1]
