"""Taints of devices in words, and those of DeviceTaintRules on slices."""

from __future__ import annotations

import pytest

from dracaena.api.device_taints import in_words, keeping_off, with_taint_rules
from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from support.allocation import DRIVER, blocks, device_name, machine, pool_slice

TWO = machine("two", blocks(2, inside="PIX", outside="SYS"))
DEAD = Taint(key="xid", value="79", effect="NoSchedule")


def rule(name: str, **selector: str) -> DeviceTaintRule:
    chosen = DeviceTaintSelector(**selector) if selector else None
    spec = DeviceTaintRuleSpec(taint=Taint(key=name, value="", effect="NoSchedule"), device_selector=chosen)
    return DeviceTaintRule(metadata=ObjectMeta(name=name), spec=spec)


def test_a_taint_is_written_as_kubectl_writes_it() -> None:
    assert in_words(DEAD) == "xid=79:NoSchedule"
    assert in_words(Taint(key="sick", value="", effect="None")) == "sick:None"


@pytest.mark.parametrize(("effect", "keeps"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("", False)])
def test_only_two_effects_keep_off(effect: str, keeps: bool) -> None:
    assert any(keeping_off([Taint(key="xid", value="13", effect=effect)])) is keeps


def test_rules_taint_what_they_select_by_name_and_nothing_else() -> None:
    page = pool_slice("n", TWO)
    rules = [
        rule("z", driver=DRIVER, pool="n"),
        rule("a", driver=DRIVER, pool="n", device=device_name(TWO, 1)),
        rule("other-pool", driver=DRIVER, pool="m"),
        rule("other-driver", driver="nic.example.com"),
        rule("nothing"),
    ]
    tainted = with_taint_rules(page, rules)
    keys = [[taint.key for taint in device.taints][1:] for device in tainted.spec.devices]
    assert keys == [["z"], ["a", "z"]]
    assert with_taint_rules(page, rules[2:]) is page
