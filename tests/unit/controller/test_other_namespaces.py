"""What a pod's users are told names no pod and no claim of another namespace."""

from __future__ import annotations

import msgspec

from dracaena.controller.allocation.explanation import Reason, Reasons, Unsatisfied
from dracaena.controller.state.explanation_cache import EXPLANATION_S, Explanation, ExplanationCache
from support.allocation import claim, holding, pod, request
from support.hostile_pods import Hostile, named
from support.reconciling import Bench


def submit(bench: Bench, one: Hostile) -> None:
    bench.add(*one[1])
    bench.add(one[0])


def two_claims(namespace: str, name: str) -> Hostile:
    wants_too_much = request(capacity={"requests": {"memory": "100Ti"}})
    made = pod("p", "c", "c-1"), (claim("c", wants_too_much), claim("c-1", wants_too_much))
    return named(made, namespace, name, "2026-01-01T00:00:00Z")


HELPS = ("ask for 4 in place of 8, which node a can give now",)


def words(found: Reasons | None) -> str:
    return "" if found is None else found.text


def test_equal_pods_of_two_namespaces_learn_the_same_reason_about_their_own_claims() -> None:
    bench = Bench()
    told = {}
    for namespace, name in (("red", "first"), ("blue", "second")):
        one = two_claims(namespace, name)
        submit(bench, one)
        told[namespace] = words(bench.cluster.explain(one[0], one[1], now_s=EXPLANATION_S / 2))
    assert "claim red/first-c, request gpus" in told["red"]
    assert told["blue"] == told["red"].replace("red/first", "blue/second")
    assert "red" not in told["blue"].replace("shared", "")


def test_it_is_worked_out_once_for_both_and_no_other_word_is_changed() -> None:
    explanations = ExplanationCache()
    text = "1 where claim dev/uuid, request r: 2 are to differ in gpu.dracaena.dev/uuid; pod dev/p; claim dev/uuid-1."
    question = (b"shape", ())
    explanations.put(question, ("dev/p", "dev/uuid", "dev/uuid-1"), Reasons(text, HELPS), now_s=0.0)
    found = explanations.get(question, ("x/q", "x/a", "x/b"), now_s=0.1)
    changed = "1 where claim x/a, request r: 2 are to differ in gpu.dracaena.dev/uuid; pod x/q; claim x/b."
    assert found == Explanation(0.0, Reasons(changed, HELPS))
    assert explanations.get(question, ("dev/p", "dev/uuid", "dev/uuid-1"), now_s=0.1) == Explanation(
        0.0, Reasons(text, HELPS)
    )
    assert explanations.get(question, ("x/q", "x/a", "x/b"), now_s=EXPLANATION_S) is None


def test_the_values_name_the_same_claims_as_the_text() -> None:
    def about(name: str) -> Reasons:
        said = f"claim {name}, request r"
        why = Unsatisfied(2, (Reason(said, 2, nodes=("a",)),), f"never {said}", (f"unknown {said}",), (f"note {said}",))
        return Reasons(why, HELPS)

    explanations, question = ExplanationCache(), (b"shape", ())
    explanations.put(question, ("dev/c",), about("dev/c"), now_s=0.0)
    found = explanations.get(question, ("x/c",), now_s=0.1)
    assert found == Explanation(0.0, about("x/c"))
    assert found.reasons is not None
    assert "dev" not in found.reasons.text


def test_a_claim_that_is_called_as_its_pod_is_not_taken_for_it() -> None:
    bench = Bench()
    wants_too_much = request(capacity={"requests": {"memory": "100Ti"}})
    asked = {name: (pod(name, name), claim(name, wants_too_much)) for name in ("x", "y")}
    asked["z"] = pod("z", "of-z"), claim("of-z", wants_too_much)
    told = {}
    for name, (waiting, wanted) in asked.items():
        bench.add(wanted, waiting)
        told[name] = words(bench.cluster.explain(waiting, [wanted], now_s=0.0))
    assert "claim default/y, request gpus" in told["y"]
    assert "claim default/of-z, request gpus" in told["z"]


def test_a_collision_names_the_other_claim_in_its_own_namespace_only() -> None:
    bench = Bench()
    first = holding(claim("a"), "n", "gpu-0")
    second = holding(claim("b"), "n", "gpu-0")
    second = msgspec.structs.replace(
        second, metadata=msgspec.structs.replace(second.metadata, namespace="other", uid="uid-other")
    )
    bench.add(first, second)
    texts = [text for _, reason, text in bench.events.seen if reason == "DeviceCollision"]
    assert len(texts) == 2
    assert all("is allocated to a claim of another namespace too" in text for text in texts)
    assert not any("default/a" in text or "other/b" in text for text in texts)


def test_a_capacity_that_no_device_has_is_not_said_to_be_taken() -> None:
    bench = Bench()
    for version, amounts in ("1", {"memory": "100Ti"}), ("2", {"memroy": "1"}):
        asked = claim("c", request(capacity={"requests": amounts}), resource_version=version)
        bench.cluster.intake.claim_changed(bench.cluster.claim(asked.key), asked)
        text = words(bench.cluster.explain(pod("p", "c"), [asked], now_s=0.0))
        assert "7 that lack such a capacity, or never have as much as requested" in text
