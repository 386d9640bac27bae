"""What is measured of one driver: calls, its start, the driver at rest, a thousand cycles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from bench.node.driver import Dracaena, NodeDriver, Usage
from bench.node.ground import Claim

PROBE_EVERY_S = 10.0
SCRAPE_EVERY_S = 30.0
"""What kubelet's probes and a Prometheus ask of a plugin at rest, by their defaults or nearly so."""

WARM_CYCLES = 100
"""Before the first look at a leak: caches and the heap have come to their size by then."""

LEAK_FLOOR_MIB = 2.0
"""2 KiB a cycle: the heap of a process moves by some hundred KiB on its own."""

SETTLE_S = 3.0
"""Until what follows a call (annotations, status.devices) is done."""

LOOK_FOR_S = 20.0
"""For how long a descriptor or thread may take to go: connections to the API are closed in the background."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How long each prepare and each unprepare took."""

    prepare_s: tuple[float, ...]
    unprepare_s: tuple[float, ...]
    cpu_s: float
    """Of the process for one of each, with all that follows them; steadier than the times on a busy machine."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A driver at rest."""

    usage: Usage
    cpu_share: float
    """Of one core, in percent."""


@dataclass(frozen=True, slots=True)
class Leak:
    """What is more after many cycles than before."""

    files: int
    descriptors: int
    threads: int
    """Fewer than before count as much: all are there from the start, and none of them may end."""
    rss_bytes: int


def calls(driver: NodeDriver, claims: Sequence[Claim], *, pause_s: float) -> Calls:
    """Prepare and unprepare each claim once, one call after the other, with a pause behind each."""
    prepare, unprepare = [], []
    before_s = driver.usage().cpu_s
    for claim in claims:
        prepare.append(driver.prepare(claim))
        time.sleep(pause_s)
        unprepare.append(driver.unprepare(claim))
        time.sleep(pause_s)
    return Calls(tuple(prepare), tuple(unprepare), (driver.usage().cpu_s - before_s) / len(claims))


def hold(driver: NodeDriver, claims: Iterable[Claim]) -> None:
    """Prepare claims and leave them so until what follows is done."""
    for claim in claims:
        driver.prepare(claim)
    time.sleep(SETTLE_S)


def rest(driver: Dracaena, for_s: float, tell: Callable[[str], None]) -> Rest:
    """Leave a driver alone but for what a node asks of it all the time: health stream, probes, a scraper."""
    close = driver.watch_health()
    time.sleep(SETTLE_S)
    before, began_s = driver.usage(), time.monotonic()
    probe_s = scrape_s = began_s
    while (now_s := time.monotonic()) < began_s + for_s:
        if now_s >= probe_s:
            driver.get("/readyz")
            driver.get("/healthz")
            probe_s += PROBE_EVERY_S
        if now_s >= scrape_s:
            driver.get("/metrics")
            scrape_s += SCRAPE_EVERY_S
            tell(f"at rest, {began_s + for_s - now_s:.0f} s left")
        time.sleep(min(1.0, max(0.0, began_s + for_s - time.monotonic())))
    after, took_s = driver.usage(), time.monotonic() - began_s
    close()
    return Rest(after, (after.cpu_s - before.cpu_s) / took_s * 100)


def leak(driver: NodeDriver, claims: Sequence[Claim], cycles: int) -> Leak:
    """Prepare and unprepare in turn; return what is more after `cycles` than after the first ones, of threads than
    after the start.
    """
    threads = driver.usage().threads
    _cycles(driver, claims, WARM_CYCLES)
    before, files = driver.usage(), driver.files()
    _cycles(driver, claims, cycles)
    deadline_s = time.monotonic() + LOOK_FOR_S
    while True:
        after, more = driver.usage(), driver.files() - files
        grown = Leak(
            len(more),
            after.descriptors - before.descriptors,
            abs(after.threads - threads),
            after.rss_bytes - before.rss_bytes,
        )
        if max(grown.files, grown.descriptors, grown.threads) <= 0 or time.monotonic() > deadline_s:
            return grown
        time.sleep(1.0)


def percentile_ms(seconds: Sequence[float], percent: int) -> float:
    """Return a percentile in milliseconds: the value that this share of all does not exceed."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


def median_ms(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000


def _cycles(driver: NodeDriver, claims: Sequence[Claim], count: int) -> None:
    for claim in islice(cycle(claims), count):
        driver.prepare(claim)
        driver.unprepare(claim)
    time.sleep(SETTLE_S)
