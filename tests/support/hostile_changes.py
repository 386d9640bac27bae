"""Sequences of changes that one tenant makes over and over, drawn by chance, beside a pod of others each second.

A real controller without threads. Its work is counted: each call of a function of ours is a step, names that are handed
out are steps, and a step takes a microsecond of the clock that it sees. So time here says how much was done, and the
same on every machine.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

import dracaena.controller
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.queue.work import claim_of_work
from dracaena.controller.state.records import Records
from dracaena.kube.errors import InvalidError
from support.allocation import blocks, claim, machine, pod, request
from support.clock import FakeClock
from support.queues import take_ready
from support.reconciling import Bench

EIGHT: Final = machine("eight", blocks(4, 4, inside="PIX", outside="SYS"))
NODES: Final = 6
STEP_S: Final = 1e-6
REQUEST_S: Final = 0.01
"""The tenant sends 100 requests a second."""
TENANT: Final = "tenant"
WATCHES: Final = "watches"
ASKED: Final = 3
"""Pods about which somebody asks each second why they wait."""
OURS: Final = str(Path(dracaena.controller.__file__).parents[1])


class CountingClock(FakeClock):
    """A clock on which each step takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.steps * STEP_S

    def worked(self) -> float:
        return self.steps * STEP_S

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        """Let the time pass at once: the one thread that there is would wait for itself."""
        self.advance(timeout_s)
        return event.is_set()


class HostileWorld(Bench):
    """A tenant with a crowd of pods that name its claims, and honest pods beside it."""

    clock_type = CountingClock

    def __init__(self, seed: int, pods: int) -> None:
        super().__init__(**{f"n{number}": EIGHT for number in range(NODES)})
        assert isinstance(self.clock, CountingClock)
        self.counting = self.clock
        self.steps: Counter[str] = Counter()
        """Who caused work → steps."""
        self.waits_s: list[float] = []
        """How long each honest pod waited for its devices."""
        self.api.before = self._refuse_unwritable
        self.plans = 0
        """Looks at pods of the tenant."""
        self.refused = 0
        """Writes of ours that the server refused."""
        self.most_steps = 0
        """Of one change, while the lock is held."""
        self.names = 0
        """Names of pods that were handed out as pods of a claim."""
        self.claims_made_again = 0
        self.rng, self.crowd, self._number = random.Random(seed), pods, 0
        self._asked = random.Random(seed)
        self.published: dict[str, Any] = {}
        """What a node's token, or a tenant, has now of what is neither a pod nor a claim, by name."""
        for kind in ("small", "large"):
            self.put(claim(kind, request(count=1 if kind == "small" else 9)))
        for number in range(pods):
            self.put(pod(f"p{number}", "small" if number % 2 else "large"))
        self.put(claim("unwritable", request()))
        for number in range(pods // 10):
            self.put(pod(f"u{number}", "unwritable"))
        self.settle()
        self.steps.clear()
        self.plans = self.refused = self.names = self.most_steps = 0

    def live(self, seconds: int, patterns: Mapping[str, Callable[[HostileWorld], None]] | None) -> None:
        """Let time go by: the tenant changes something each REQUEST_S (None: nothing), and each second an honest pod
        comes, is served and goes. One worker does what is due."""
        names = sorted(patterns or ())
        begin_s = self.clock.monotonic()
        next_change_s, next_honest_s, pattern = begin_s, begin_s + 0.5, ""
        honest: tuple[str, float] | None = None
        while (now_s := self.clock.monotonic()) < begin_s + seconds:
            if patterns and now_s >= next_change_s:
                next_change_s += REQUEST_S
                if not pattern or self.rng.random() < 0.02:  # a tenant goes on with what it does, for a while
                    pattern = self.rng.choice(names)
                with self._counted(WATCHES):
                    patterns[pattern](self)
            elif honest is None and now_s >= next_honest_s:
                next_honest_s, honest = next_honest_s + 1.0, self._ask(now_s)
                self._look_why_some_wait()
            elif not self.work_once():
                self.clock.advance(0.001)
            if honest is not None and self.api.claims[honest[0]].status.allocation is not None:
                self.waits_s.append(self.clock.monotonic() - honest[1])
                self._leave(honest[0])
                honest = None
        if honest is not None:
            self.waits_s.append(self.clock.monotonic() - honest[1])

    def settle(self) -> None:
        """Do what is left, until nothing is."""
        for _ in range(20 * (self.crowd + 100)):
            if not self.work_once():
                if not len(self.queue._ready):
                    return
                self.clock.advance(0.001)
        raise AssertionError(f"it never ends: {self.refused} writes were refused")

    def work_once(self) -> bool:
        """Do what a worker does with the next key; return whether there was one."""
        key = take_ready(self.queue)
        if key is None:
            return self._remove_gate()
        who = (claim_of_work(key) or key).partition("/")[0]
        self.plans += who == TENANT and key in self.api.pods
        with self._counted(who):
            self.work(key)
        return True

    def _remove_gate(self) -> bool:
        if not self.gate_queue._ready and not self._due(self.gate_queue):
            return False
        with self._counted(TENANT):
            self.remove_gate()
        return True

    def wait_for_own(self, seconds: float) -> float:
        """Let an ordinary pod of the tenant come; return how long it waits, `seconds` at most."""
        self.put(claim("own", request()))
        self.put(pod("own", "own"))
        began_s = self.clock.monotonic()
        while self.api.claims[f"{TENANT}/own"].status.allocation is None:
            if self.clock.monotonic() - began_s >= seconds:
                break
            if not self.work_once():
                self.clock.advance(0.001)
        return self.clock.monotonic() - began_s

    # What a tenant does

    def put(self, item: Pod | ResourceClaim) -> None:
        """Store an object of the tenant, as a new one if it is not there."""
        known = item.metadata
        uid = known.uid if known.uid.startswith(TENANT) else f"{TENANT}-{known.uid}"
        created = known.creation_timestamp or "2025-01-01T00:00:00Z"
        metadata = msgspec.structs.replace(known, namespace=TENANT, uid=uid, creation_timestamp=created)
        self.add(msgspec.structs.replace(item, metadata=metadata))

    def of_tenant(self, name: str) -> ResourceClaim | None:
        return self.api.claims.get(f"{TENANT}/{name}")

    def some(self) -> int:
        """A new number now and then, and mostly an old one."""
        self._number += self.rng.random() < 0.3
        return self._number

    def any_pod(self) -> Pod | None:
        keys = [key for key in self.api.pods if key.startswith(f"{TENANT}/")]
        return self.api.pods[self.rng.choice(keys)] if keys else None

    def forget(self, key: str) -> None:
        """Delete what the tenant has of this name."""
        if key in self.api.pods:
            self.remove_pod(key)
        if key in self.api.claims:
            self.api.remove(key)

    # Honest pods

    def _ask(self, now_s: float) -> tuple[str, float]:
        self._number += 1
        key = f"honest/h{self._number}"
        metadata = {"namespace": "honest", "creation_timestamp": "2026-01-01T00:00:00Z"}
        for item in (claim(f"h{self._number}", request()), pod(f"h{self._number}", f"h{self._number}")):
            self.add(msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, **metadata)))
        return key, now_s

    def _look_why_some_wait(self) -> None:
        """Ask as people may at any time: whatever they are told is judged (support.reasons), and counts as no work."""
        known = self.waiting._by_key
        for key in self._asked.sample(sorted(known), min(ASKED, len(known))):
            why = known[key].why
            if callable(why):
                why()

    def _leave(self, key: str) -> None:
        self.remove_pod(key)
        self.api.remove(key)

    def _refuse_unwritable(self, verb: str, key: str) -> None:
        self.counting.steps += 500  # a request costs a worker half a millisecond
        if key == f"{TENANT}/unwritable":
            self.refused += 1
            raise InvalidError(f"PATCH {key}", 422, "Invalid", "spec: field is immutable")

    @contextmanager
    def _counted(self, who: str) -> Iterator[None]:
        clock, began = self.counting, self.counting.steps

        def count(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(OURS):
                clock.steps += 1

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.steps[who] += clock.steps - began
            if who == WATCHES:
                self.most_steps = max(self.most_steps, clock.steps - began)


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no steps meanwhile: somebody else makes what the tenant sends."""
    counting = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(counting)


@contextmanager
def names_are_steps(world: HostileWorld) -> Iterator[None]:
    """Count each name of a pod that the records hand out, which no call shows."""
    naming = Records.naming

    def counted(records: Records, claim_key: str) -> tuple[str, ...]:
        found = naming(records, claim_key)
        world.counting.steps += len(found)
        world.names += len(found)
        return found

    Records.naming = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Records.naming = naming  # type: ignore[method-assign]


MOST_WAIT_S: Final = 0.05
"""How long an honest pod may wait: the goal. The floor is five times as long."""
MOST_WORK: Final = 0.5
"""Part of a processor that all of a tenant's changes may cost in the long run."""
MOST_STEPS: Final = 10_000
"""Of one change, while it is taken in: 10 ms. A slice of eight GPUs that comes again takes 4,000."""
MOST_NAMES: Final = 10
"""Names of pods of its claim for each look at a pod: it is named when it is woken, and again by later changes."""
MOST_OWN_WAIT_S: Final = 5.0
"""How long a pod of the tenant itself waits once all is quiet again."""


def found(seed: int, pods: int, seconds: int, patterns: Mapping[str, Callable[[HostileWorld], None]]) -> list[str]:
    """Let a tenant do what these patterns are for some seconds; return what it did to others, and to itself."""
    try:
        world = HostileWorld(seed, pods)
    except AssertionError as error:
        return [str(error)]
    with names_are_steps(world):
        world.live(seconds, patterns)
        work = (world.steps[TENANT] + world.steps[WATCHES]) * STEP_S / seconds
        names = world.names / max(world.plans, 1)
        own_s = world.wait_for_own(2 * MOST_OWN_WAIT_S)
        world.live(int(MOST_OWN_WAIT_S), None)
    wrong = {
        f"a pod of others waited {max(world.waits_s):.3f} s": max(world.waits_s) > MOST_WAIT_S,
        f"it took {work:.2f} of a processor": work > MOST_WORK,
        f"one change took {world.most_steps} steps": world.most_steps > MOST_STEPS,
        f"a look at a pod took {names:.0f} names of others": names > MOST_NAMES and world.plans > pods,
        f"{world.refused} writes were refused": world.refused > 5 + world.claims_made_again,
        f"{len(world.queue._ready)} keys have no turn": bool(world.queue._ready),
        f"a pod of its own waited {own_s:.1f} s": own_s > MOST_OWN_WAIT_S,
    }
    return [text for text, is_wrong in wrong.items() if is_wrong]
