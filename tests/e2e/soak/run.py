"""`make e2e-soak`: minutes of faults on a real control plane, and an independent checker that reads all through them.

Exit code: 0 no violation, 1 a violation (told with the history of its objects), 77 for want of a prerequisite.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from e2e import isolation
from e2e.api import ApiError
from e2e.run import BINARIES
from e2e.soak.chaos import PODS, Chaos
from e2e.soak.checker import Checker
from e2e.soak.following import Following
from e2e.soak.rules import CLASSES, DRIVER
from e2e.soak.world import World
from e2e.standalone import binaries_folder, logs_folder, run_alone
from e2e.waiting import eventually
from support.readiness import readiness

DEFAULT_S: Final = 600.0
PROGRESS_S: Final = 10.0
CHECK_S: Final = 1.0
"""Between two looks of the checker; it misses no state, so this is only how soon it speaks."""

SEEN_S: Final = 2.0
"""Until the watches have shown that nodes take pods again: who waited for one of them is unsettled only then."""

SETTLE_S: Final = 150.0
"""After the last fault, until everything has to be in order: a lease that runs out (14 s), the wait for writes of the
old leader (10 s), kube-scheduler's and the pod collector's waits (60 s), the controller's own, a loaded machine."""

START_S: Final = 90.0
LATE: Final = 3
"""Pods that wait when all is given away, for what others give back."""

TRIED_S: Final = 3.0
"""After kube-scheduler said so, until the controller has found that nothing is free: it looks at the same time."""

SHOWN: Final = 20
"""Violations that are told in full."""


def main(arguments: Sequence[str]) -> int:
    """Start the isolated run, or be it."""
    parser = argparse.ArgumentParser(prog="make e2e-soak", description=__doc__)
    seconds = float(os.environ.get("SOAK_S") or DEFAULT_S)
    parser.add_argument("--seconds", type=float, default=seconds, help="of faults (%(default)s; also SOAK_S)")
    parser.add_argument("--seed", type=int, help="decides what is done, in which order; default: another each time")
    parser.add_argument("--violations", type=int, default=SHOWN, help="after which it ends (%(default)s)")
    options = parser.parse_args(arguments)
    if BINARIES not in os.environ:
        return run_alone("e2e.soak.run", arguments, name="soak")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    return Soak(seed, options.seconds, options.violations).run()


class Soak:
    """One run."""

    def __init__(self, seed: int, seconds: float, enough: int) -> None:
        self._seed = seed
        self._seconds = seconds
        self._enough = enough
        self._rng = random.Random(seed)
        self._checker = Checker()
        self._checks = 0
        self._told_s = 0.0
        self._shown = 0

    def run(self) -> int:
        """Run it; return the exit code."""
        _say(f"soak: seed {self._seed}, {self._seconds:.0f} s of faults; logs in {logs_folder()}")
        with World(isolation.ROOT / "soak", binaries_folder(), logs_folder(), self._rng) as world:
            chaos = Chaos(world, random.Random(self._seed))
            following = Following(lambda: world.api, world.connect, world.now_s)
            following.start()
            chaos.begin()
            for replica in world.replicas:
                replica.program.start()
            for replica in world.replicas:
                eventually(
                    lambda port=replica.port: readiness(port)[0] == 200,  # type: ignore[misc]
                    f"{replica.name} is ready",
                    within_s=START_S,
                    programs=(replica.program,),
                )
            eventually(lambda: any(r.leads() for r in world.replicas), "somebody leads", within_s=START_S)
            self._disturb(world, chaos, following)
            chaos.end()
            if len(self._checker.violations) < self._enough:
                self._settle(world, chaos, following)
            if not self._checker.violations:
                self._fill(world, chaos, following)
            following.stop()
            self._tell_violations()
            self._tell(world, chaos, f"soak, seed {self._seed}, done")
        return 1 if self._checker.violations else 0

    def _disturb(self, world: World, chaos: Chaos, following: Following) -> None:
        world.began_s = time.monotonic()
        next_s = next_check_s = 0.0
        while (now_s := world.now_s()) < self._seconds and len(self._checker.violations) < self._enough:
            if now_s >= next_s:
                next_s = now_s + chaos.step()
            if now_s >= next_check_s:
                next_check_s = now_s + CHECK_S
                self._check(following)
                self._revive(chaos)
            if now_s - self._told_s >= PROGRESS_S:
                self._told_s = now_s
                self._tell(world, chaos, "faults")
            time.sleep(0.05)

    def _settle(self, world: World, chaos: Chaos, following: Following) -> None:
        """Wait until nothing is unsettled; what then still is, is a violation."""
        ends_s = world.now_s() + SETTLE_S
        while True:
            complete = self._check(following)
            self._revive(chaos)
            left = self._checker.unsettled()
            if complete and not left:
                return
            if world.now_s() > ends_s:
                for text, about in left:
                    self._checker.report(f"after {SETTLE_S:.0f} s of peace: {text}", *about)
                if not complete:
                    self._checker.report("the API server does not answer after the faults")
                return
            if world.now_s() - self._told_s >= PROGRESS_S:
                self._told_s = world.now_s()
                self._tell(world, chaos, f"settling, {len(left)} left, first: {left[0][0] if left else 'the server'}")
            time.sleep(CHECK_S)

    def _fill(self, world: World, chaos: Chaos, following: Following) -> None:
        """Every free device is free, and every free share, also on nodes that were closed: a pod for each is bound."""
        chaos.open_nodes()
        time.sleep(SEEN_S)
        self._settle(world, chaos, following)
        gpus = {
            node: sum(CLASSES[DRIVER](device) for device in devices.values())
            for node, devices in self._checker.free_devices().items()
        }
        shares = self._checker.shares_left()
        for template, counts in (("one", gpus), ("share", shares)):
            for node, count in sorted(counts.items()):
                for number in range(count):
                    world.api.create(PODS, _pod(f"fill-{template}-{node}-{number}", template, node))
        count = sum(gpus.values()) + sum(shares.values())
        chaos.counts["free GPUs filled"] = sum(gpus.values())
        chaos.counts["free shares filled"] = sum(shares.values())
        self._settle(world, chaos, following)
        pods, bound = self._checker.pods()
        waiting = [item["metadata"]["name"] for item in world.api.get(PODS)["items"] if _waits(item)]
        fillers = [name for name in waiting if name.startswith("fill-")]
        for name in fillers:
            about = (("pods", f"default/{name}"),)
            self._checker.report(f"something was free and pod {name}, made for it, is not bound", *about)
        _say(f"soak: {count} free GPUs and shares were asked for, {bound} of {pods} pods are bound")
        if not self._checker.violations:
            self._free(world, chaos, following)

    def _free(self, world: World, chaos: Chaos, following: Following) -> None:
        """Nothing is free any more. Pods wait, and get what others give back."""
        for number in range(LATE):
            world.api.create(PODS, _pod(f"late-{number}", "one"))
        eventually(lambda: _late_tried(world.api.items(PODS)) == LATE, "late pods were tried", within_s=START_S)
        time.sleep(TRIED_S)
        self._settle(world, chaos, following)
        given_back = [item["metadata"]["name"] for item in world.api.items(PODS) if _is_filler(item)][:LATE]
        for name in given_back:
            world.api.delete(f"{PODS}/{name}", grace_s=0)
        chaos.counts["GPUs given back to others"] = len(given_back)
        self._settle(world, chaos, following)

    def _check(self, following: Following) -> bool:
        try:
            events = following.take()
        except ApiError:
            events = None
        self._checks += events is not None
        for event in events or ():
            self._checker.take(event)
        self._tell_violations()
        return events is not None

    def _revive(self, chaos: Chaos) -> None:
        for crashed in chaos.revive():
            self._checker.report(crashed)

    def _tell_violations(self) -> None:
        for violation in self._checker.violations[self._shown : SHOWN]:
            _say(str(violation))
            self._shown += 1

    def _tell(self, world: World, chaos: Chaos, what: str) -> None:
        pods, bound = self._checker.pods()
        counts = self._checker.counts
        done = ", ".join(f"{name} {number}" for name, number in sorted(chaos.counts.items()))
        faults = sum(sum(replica.proxy.counts.values()) for replica in world.replicas)
        leader = next((replica.name for replica in world.replicas if replica.leads()), "nobody")
        _say(
            f"[{world.now_s():4.0f} s] {what}: {pods} pods, {bound} bound, {leader} leads; {done}; requests failed "
            f"{faults}; checks {self._checks}, states {counts.events}, allocations {counts.allocations} "
            f"({counts.stale} of devices just gone), binds {counts.binds}; violations {len(self._checker.violations)}"
        )


def _pod(name: str, template: str, node: str | None = None) -> dict[str, Any]:
    """Return a pod for one claim, on a node or on any."""
    container = {"name": "main", "image": "nobody/runs-this:1", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {} if node is None else {"kubernetes.io/hostname": node},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _waits(pod: Any) -> bool:
    return not pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending"


def _is_filler(pod: Any) -> bool:
    return str(pod["metadata"]["name"]).startswith("fill-one-")


def _late_tried(pods: Sequence[Any]) -> int:
    """Return how many of the late pods kube-scheduler has bound, or has said of why not."""
    late = [pod for pod in pods if pod["metadata"]["name"].startswith("late-")]
    return sum(any(one["type"] == "PodScheduled" for one in pod["status"].get("conditions", ())) for pod in late)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
