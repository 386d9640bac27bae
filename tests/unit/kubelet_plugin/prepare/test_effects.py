from __future__ import annotations

from dataclasses import replace

from dracaena.kubelet_plugin.prepare.effects import Effect, is_among, journaled
from support.plugin import device_name


def effect(kind: str, number: int = 0) -> Effect:
    return Effect(kind, device_name(number), device_name(number))


def test_how_far_an_effect_got_does_not_make_it_another() -> None:
    made = replace(effect("a"), outcome={"n": 1})
    assert made.is_same(effect("a"))
    assert is_among(made, [effect("b"), effect("a")])
    assert not is_among(
        made, [effect("b"), effect("a", 1), replace(made, share_id="x"), replace(made, parameters={"p": 1})]
    )


def test_a_new_plan_keeps_what_was_told_and_forgets_nothing() -> None:
    made, stale = replace(effect("a"), outcome={"n": 1}), effect("old")
    assert journaled((made, stale), (effect("b"), effect("a"))) == (stale, effect("b"), made)
    assert journaled((made, stale), ()) == (made, stale)
    assert journaled((), (effect("a"),)) == (effect("a"),)


def test_an_effect_is_named_with_its_device_and_share() -> None:
    assert str(effect("a")) == f"a of {device_name(0)}"
    assert str(replace(effect("a"), share_id="x")) == f"a of {device_name(0)} for share x"
