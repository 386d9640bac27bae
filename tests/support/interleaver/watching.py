"""What a controller sees of the server: real reflectors without a thread, as late as the schedule likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.api.workload_objects import PodGroup
from dracaena.kube.reflector import Kept, Reflector
from support.interleaver.server import AROUND, Change, OtherSlice
from support.interleaver.strands import Strand

if TYPE_CHECKING:
    from support.interleaver.process import Client


class SteppedReflector(Reflector[Any]):
    """A reflector whose watch moves by deliver(), and whose list tells one object a step when a strand does it."""

    def __init__(self, client: Client, kind: type[KubeObject], **rest: Any) -> None:
        super().__init__(client, kind, **rest)  # type: ignore[arg-type]
        self._world = client.world
        self._keep = (rest.get("kept") or Kept[Any]()).transform
        self._at = 0
        self._is_listing = False
        client.reflectors[kind] = self

    @property
    def pending(self) -> list[Change]:
        """What the watch has not shown yet."""
        return self._world.server.history[self._kind][self._at :]

    @property
    def is_behind(self) -> bool:
        """A watch goes on when the list before it is taken in."""
        return not self._is_listing and self._at < len(self._world.server.history[self._kind])

    def deliver(self) -> Change:
        """Show the next change."""
        change = self._world.server.history[self._kind][self._at]
        self._at += 1
        self._apply(change.key, self.kept(change.item))
        return change

    def kept(self, item: Any) -> Any:
        """Return what is kept of an object that was read."""
        return None if item is None else self._keep(item)

    def _list(self) -> None:
        self._is_listing = True
        try:
            super()._list()
        finally:
            self._is_listing = False

    def list_now(self) -> None:
        """The watch broke: read all objects as they are, and show what is different, one object a step."""
        self._list()

    def caught_up(self) -> None:
        """The list was read: the watch goes on from here."""
        self._at = len(self._world.server.history[self._kind])

    def wait_synced(self, timeout_s: float) -> bool:
        return True

    def wait_listed(self, timeout_s: float) -> bool:
        if self._list_wanted:
            self._list()
        return True

    def _apply(self, key: str, new: Any, *, unread: bool = False) -> None:
        super()._apply(key, new, unread=unread)
        for aside in self._trouble.aside.values():
            raise AssertionError(f"a change of {key} could not be taken in: {aside.reason}")
        if Strand.current is not None:
            Strand.pause("next object of the list")

    def _pause(self, asked_s: float | None = None) -> None:
        raise AssertionError(self.last_error)


class StillReflector:
    """A reflector of a kind that never changes here: what there is of it is there from the start."""

    def __init__(
        self,
        client: Client,
        kind: type[KubeObject],
        *,
        on_change: Callable[[None, Any], None] = lambda old, new: None,
        kept: Kept[Any] | None = None,
        **_: Any,
    ) -> None:
        self.resource = kind.RESOURCE
        self._items = client.world.scenario.pod_groups if kind is PodGroup else ()
        self._on_change, self._kept = on_change, kept

    def start(self) -> None:
        """Show all that there is. Only what is not watched from the beginning is started here."""
        for item in self._items:
            self._on_change(None, item)
        if self._kept is not None and self._kept.on_listed is not None:
            self._kept.on_listed(True)

    def wait_synced(self, timeout_s: float) -> bool:
        return True

    def get(self, key: str) -> None:
        """There is none of its kind."""


def reflector(client: Client, kind: type[KubeObject], **rest: Any) -> SteppedReflector | StillReflector:
    """Make what takes the place of Reflector."""
    scenario = client.world.scenario
    is_of_others = kind is ResourceSlice and "!=" in rest["kept"].field_selector
    moves = bool(scenario.cards) if is_of_others else kind in AROUND and scenario.changes
    watched = OtherSlice if is_of_others else kind
    return (SteppedReflector if kind in (Pod, ResourceClaim) or moves else StillReflector)(client, watched, **rest)
