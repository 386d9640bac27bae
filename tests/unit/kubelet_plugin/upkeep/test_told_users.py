from __future__ import annotations

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.upkeep.told_users import ToldUsers
from support.plugin import make_pod

ONE, OTHER = ClaimUid("one"), ClaimUid("other")
POD, LATER = make_pod(), make_pod("later")


def test_each_pod_is_told_of_each_trouble_once() -> None:
    told = ToldUsers()
    assert not told.is_told(ONE, "broken")
    assert told.tell(ONE, "broken", [POD]) == [POD]
    assert told.is_told(ONE, "broken")
    assert told.tell(ONE, "broken", [POD, LATER]) == [LATER]
    assert told.tell(ONE, "broken", [LATER]) == []
    assert told.tell(ONE, "broken", [POD, LATER]) == [], "one that was not seen for a while"
    assert not told.is_told(OTHER, "broken")
    assert told.tell(ONE, "worse", [POD, LATER]) == [POD, LATER]


def test_what_comes_back_is_told_anew() -> None:
    told = ToldUsers()
    told.tell(ONE, "broken", [POD])
    told.keep({OTHER})
    assert told.tell(ONE, "broken", [POD]) == [POD]
