"""The stand-in for the garbage collector. What goes with jobs and pods is in test_jobs.py and test_stand_ins.py."""

from __future__ import annotations

from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.controllers.garbage import OWNED, OWNERS


def test_only_kinds_that_are_served_are_collected_or_own_others() -> None:
    served = {(kind.api_version, kind.plural) for kind in KINDS}
    assert {(kind.API_VERSION, kind.RESOURCE) for kind in (*OWNED, *OWNERS)} <= served
