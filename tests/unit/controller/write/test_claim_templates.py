"""Templates that the controller makes because a pod names them, and deletes when nobody does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate
from dracaena.api.objects import Pod, PodResourceClaim
from dracaena.api.resource_objects import ResourceClaimTemplate
from dracaena.controller.write.claim_templates import FOUND_S, MADE_AGAIN_S, MISSED_S, ClaimTemplates
from dracaena.kube.errors import ApiUnavailableError, ForbiddenError
from support.allocation import DRIVER, blocks, claim, machine, pod
from support.claim_api import FakeTemplates
from support.clock import FakeClock
from support.reconciling import Bench

UNUSED_S = 600.0
TWO = f"gpus-2.{DRIVER}"
KEY = f"default/{TWO}"


def asking(name: str, template: str = TWO) -> Pod:
    item = pod(name)
    entry = PodResourceClaim(name="dracaena-0", resource_claim_template_name=template)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, resource_claims=[entry]))


def test_a_template_is_made_for_the_first_pod_that_names_it_and_for_no_other() -> None:
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    for number in range(20):
        bench.add(asking(f"p{number}"))
    bench.run()
    assert bench.template_api.writes == [("create", KEY)]
    assert list(bench.template_api.templates) == [KEY]


def test_a_template_for_mig_devices_of_a_profile_is_made_and_goes_when_nobody_has_named_it_for_long() -> None:
    api, clock, pods = FakeTemplates(), FakeClock(), dict[str, Pod]()
    templates = ClaimTemplates(api, pods.values, lambda namespace: True, clock, unused_s=UNUSED_S)
    name = f"mig-1g.10gb.me-2.mig.{DRIVER}"
    pods["p"] = asking("p", name)
    templates.make_for(pods["p"])
    (made,) = api.templates.values()
    assert made.spec.spec == GpuTemplate(2, f"mig.{DRIVER}", "1g.10gb+me").spec()["spec"]
    templates.collect()
    clock.advance(UNUSED_S)
    templates.collect()
    assert list(api.templates) == [f"default/{name}"], "a pod names it"
    pods.clear()
    templates.collect()
    clock.advance(UNUSED_S)
    templates.collect()
    assert api.templates == {}


def test_a_template_that_somebody_deleted_is_made_again_while_pods_wait_for_it() -> None:
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    bench.add(asking("p"))
    bench.run()
    bench.template_api.templates.clear()
    bench.pass_time(int(MADE_AGAIN_S) + 1)
    assert list(bench.template_api.templates) == [KEY]


@pytest.mark.parametrize("template", ["my-template", "gpus-2", f"gpus-0.{DRIVER}", f"mig-1g.10gb-1.{DRIVER}"])
def test_templates_of_other_names_are_their_users_to_make(template: str) -> None:
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    bench.add(asking("p", template))
    bench.pass_time(60)
    assert bench.template_api.writes == []


def test_nothing_is_made_for_a_pod_that_has_its_claim() -> None:
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    assert bench.template_api.writes == []


def test_nothing_is_made_in_a_namespace_that_has_not_opted_in() -> None:
    """Who may create pods there, and neither claims nor templates, must not come to GPUs by a name."""
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    bench.opted_in.clear()
    bench.add(asking("p"))
    bench.pass_time(2 * int(MADE_AGAIN_S))
    assert bench.template_api.writes == []
    bench.opted_in.add("default")
    bench.queue.add("default/p")  # as its change has the pods of the namespace looked at
    bench.run()
    assert list(bench.template_api.templates) == [KEY]


def test_a_template_of_a_user_with_our_label_is_left_alone() -> None:
    api, clock = FakeTemplates(), FakeClock()
    metadata = {"namespace": "default", "labels": {MANAGED_BY: MANAGER}}
    one = GpuTemplate(1, DRIVER).spec()
    mine = {"metadata": {**metadata, "name": "mine", "uid": "1"}, "spec": one}
    other = {"metadata": {**metadata, "name": TWO, "uid": "2"}, "spec": one}
    for document in (mine, other):
        made = msgspec.convert(document, ResourceClaimTemplate)
        api.templates[made.key] = made
    templates = ClaimTemplates(api, tuple, lambda namespace: True, clock, unused_s=UNUSED_S)
    for _ in range(20):
        clock.advance(UNUSED_S / 5)
        templates.collect()
    assert len(api.templates) == 2


def test_a_pod_that_comes_right_after_its_template_was_deleted_gets_it_at_once() -> None:
    api, clock, pods = FakeTemplates(), FakeClock(), dict[str, Pod]()
    templates = ClaimTemplates(api, pods.values, lambda namespace: True, clock, unused_s=UNUSED_S)
    templates.make_for(asking("first"))
    templates.collect()
    clock.advance(UNUSED_S - 1)
    templates.make_for(asking("between two looks"))
    clock.advance(1)
    templates.collect()
    assert api.templates == {}
    templates.make_for(asking("next"))
    assert list(api.templates) == [KEY]


@pytest.mark.parametrize("error", [ApiUnavailableError, ForbiddenError])
def test_what_the_server_does_not_take_is_tried_again(error: type[ApiUnavailableError | ForbiddenError]) -> None:
    bench = Bench(a=machine("two", blocks(2, inside="PIX", outside="PIX")))
    failures = 3

    def fail(verb: str, key: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise error(f"POST {key}", None, "", "no")

    bench.template_api.before = fail
    bench.add(asking("p"))
    bench.pass_time(30)
    assert list(bench.template_api.templates) == [KEY]


class World(RuleBasedStateMachine):
    """Pods come and go, users make and delete templates, time passes: nobody waits for long, and nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.api, self.clock = FakeTemplates(), FakeClock()
        self.pods: dict[str, Pod] = {}
        self.templates = ClaimTemplates(
            self.api, self.pods.values, lambda namespace: True, self.clock, unused_s=UNUSED_S
        )
        self.used_s: dict[str, float] = {}
        self.own: dict[str, ResourceClaimTemplate] = {}

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 2))
    def pod_comes(self, name: str, count: int) -> None:
        self.pods[name] = asking(name, f"gpus-{count}.{DRIVER}")
        self.ask(self.pods[name])

    def ask(self, item: Pod) -> None:
        self.templates.make_for(item)
        self.used_s[f"default/{item.spec.resource_claims[0].resource_claim_template_name}"] = self.clock.monotonic()

    @rule(name=st.sampled_from("abc"))
    def pod_goes(self, name: str) -> None:
        self.pods.pop(name, None)

    @rule(count=st.integers(1, 2))
    def user_makes_one(self, count: int) -> None:
        template = GpuTemplate(count, DRIVER)
        key = f"default/{template.name}"
        if key not in self.api.templates:
            document = {"metadata": {"name": template.name, "namespace": "default", "uid": f"own-{count}"}}
            made = msgspec.convert({**document, "spec": template.spec()}, ResourceClaimTemplate)
            self.api.templates[key] = self.own[key] = made

    @rule(seconds=st.sampled_from([10, 300, 700, 1400]))
    def time_passes(self, seconds: int) -> None:
        """As the reconciler and the program let it: waiting pods ask again, and unused templates are looked for."""
        for _ in range(seconds // 10):
            self.clock.advance(10)
            for item in self.pods.values():
                self.ask(item)
            self.templates.collect()
            self.every_pod_finds_its_template()
            for key, template in self.api.templates.items():
                if template.metadata.labels.get(MANAGED_BY) == MANAGER:
                    unused_s = self.clock.monotonic() - self.used_s[key]
                    assert unused_s <= UNUSED_S + 10, "nothing is left behind"

    @invariant()
    def every_pod_finds_its_template(self) -> None:
        named = {f"default/{item.spec.resource_claims[0].resource_claim_template_name}" for item in self.pods.values()}
        assert named <= self.api.templates.keys()

    @invariant()
    def what_users_made_stays(self) -> None:
        assert all(self.api.templates[key] is template for key, template in self.own.items())


World.TestCase.settings = settings(stateful_step_count=20)
TestWorld = World.TestCase


def test_a_template_is_read_once_for_all_pods_that_ask_at_once_be_it_there_or_not() -> None:
    api, clock = FakeTemplates(), FakeClock()
    templates = ClaimTemplates(api, lambda: (), lambda _: True, clock, unused_s=UNUSED_S)
    read: list[str] = []
    api.before = lambda verb, key: read.append(key) if verb == "list" else None
    assert [templates.exists(KEY) for _ in range(1_000)] == [False] * 1_000
    assert read == [KEY]
    clock.advance(MISSED_S)
    api.create(GpuTemplate(2, DRIVER), "default")
    assert [templates.exists(KEY) for _ in range(1_000)] == [True] * 1_000
    assert read == [KEY] * 2
    clock.advance(FOUND_S)
    assert templates.exists(KEY)
    assert read == [KEY] * 3


def test_a_template_that_we_make_is_there_at_once() -> None:
    api = FakeTemplates()
    templates = ClaimTemplates(api, lambda: (), lambda _: True, FakeClock(), unused_s=UNUSED_S)
    assert not templates.exists(KEY)
    templates.make_for(asking("p"))
    assert templates.exists(KEY)
