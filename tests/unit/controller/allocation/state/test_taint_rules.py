"""Rules that taint every device of ours are one sum, and all others are found by the pool that they name."""

from __future__ import annotations

import random

from dracaena.api.names import taint_key
from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dracaena.controller.allocation.state.taint_rules import TaintRules
from support.allocation import DRIVER

SEEDS = 30


def rule(name: str, selector: DeviceTaintSelector | None, key: str = "sick") -> DeviceTaintRule:
    return DeviceTaintRule(ObjectMeta(name=name), spec=DeviceTaintRuleSpec(Taint(key, effect="NoSchedule"), selector))


def some_rule(rng: random.Random, name: str) -> DeviceTaintRule:
    selector = DeviceTaintSelector(
        driver=rng.choice([None, DRIVER, "other.example.com"]),
        pool=rng.choice([None, None, "a", "b"]),
        device=rng.choice([None, None, "gpu-0"]),
    )
    return rule(name, rng.choice([selector, selector, selector, None]), rng.choice(["sick", taint_key(DRIVER)]))


def told(rules: TaintRules) -> object:
    def names(found: object) -> object:
        return sorted(one.metadata.name for one in found)  # type: ignore[attr-defined]

    of_pools = [(names(rules.of_pool(pool)), names(rules.of_pool_or_all(pool))) for pool in ("a", "b", "none")]
    return rules.taints_of_all, of_pools, names(rules.every())


def test_what_is_known_depends_on_the_rules_that_are_there_alone() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        rules, there = TaintRules(DRIVER), dict[str, DeviceTaintRule]()
        for _ in range(20):
            name = rng.choice("wxyz")
            if rng.random() < 0.3:
                assert rules.remove(name) == there.pop(name, None)
            else:
                new = some_rule(rng, name)
                assert rules.put(new) == there.get(name)
                there[name] = new
            anew = TaintRules(DRIVER)
            for one in there.values():
                anew.put(one)
            assert told(rules) == told(anew)


def test_each_rule_is_found_where_it_may_taint_a_device() -> None:
    rules = TaintRules(DRIVER)
    rules.put(rule("pool", DeviceTaintSelector(pool="a")))
    rules.put(rule("device", DeviceTaintSelector(device="gpu-0")))
    rules.put(rule("other", DeviceTaintSelector(driver="other.example.com")))
    rules.put(rule("all", DeviceTaintSelector(), "of-all"))
    rules.put(rule("ours", DeviceTaintSelector(), taint_key(DRIVER)))
    rules.put(rule("nothing", None))
    assert rules.taints_of_all == (Taint("of-all", effect="NoSchedule"),)
    assert [one.metadata.name for one in rules.of_pool("a")] == ["pool", "device", "other"]
    assert [one.metadata.name for one in rules.of_pool("b")] == ["device", "other"]
    assert [one.metadata.name for one in rules.of_pool_or_all("b")] == ["device", "other", "all"]
    assert len(list(rules.every())) == 6
