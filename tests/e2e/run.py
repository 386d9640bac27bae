"""`make e2e`: check the machine, build what is not in the cache, run the tests in worlds of their own.

There are three, two of them at once: a node on which our programs run as processes, a control plane whose nodes are
made up, and a cluster on which the chart is installed. Each is left out when no test in it is asked for. KUBERNETES
names the version (binaries.VERSIONS).

Exit code: 0 all passed, 1 a test failed, 2 another version was asked for than there are, 77 a test was skipped, for
example all of them for want of a prerequisite.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from e2e import binaries, isolation, node, prerequisites
from e2e.install import image
from e2e.worlds import INTERRUPTED, World, run_all, total

TESTS = Path(__file__).parent
INSTALL_TESTS = TESTS / "install"

MISSING = "DRACAENA_E2E_MISSING"
"""Environment variable for conftest.py: why no test can run."""

PLACE = "DRACAENA_E2E_PLACE"
"""Environment variable for conftest.py: only tests that belong there are run."""

BINARIES = "DRACAENA_E2E_BINARIES"
KUEUE = "DRACAENA_E2E_KUEUE"
"""Environment variable for conftest.py: the program, where its tests are asked for."""
LOGS = "DRACAENA_E2E_LOGS"
IMAGE_ARCHIVE = "DRACAENA_E2E_IMAGE"

CHART, CONTROL_PLANE, NODE = PLACES = ("chart", "control-plane", "node")
"""Where tests run, the one that takes longest first. A test belongs to the chart by its folder, to the node when it
uses one with a kubelet, and else to the control plane."""

SKIPPED = 77
"""Exit code that test drivers (automake, meson) read as `could not run`. make turns it into its own 2."""

AT_ONCE = 2
"""Worlds side by side. Each waits for its programs for more than half of its time; a third one would make tests with
limits of seconds wait for a core on a machine with two."""

MOST_AT_ONCE = 5
"""All that there are with those of a second version."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Tests of one place on one version of Kubernetes."""

    place: str
    version: str
    tests: tuple[str, ...]
    """Files and folders; those in them that belong to other places are left out."""
    name: str


def main() -> int:
    """Run the command line and return the exit code."""
    with ExitStack() as held:
        return _main(held)


def _main(held: ExitStack) -> int:
    options, pytest_options = _parser().parse_known_args()
    cache = binaries.cache_root(os.environ)
    try:
        version = binaries.kubernetes_version(os.environ)
    except binaries.BuildError as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 2
    if options.kueue:
        os.environ[KUEUE] = str(binaries.kueue(cache))
    selections = _selections(version, core=options.core, and_core_on=options.and_core_on)
    versions = sorted({one.version for one in selections})
    needed = prerequisites.missing_to_build if options.build_only else prerequisites.missing
    missing = needed(built=all(binaries.is_built(cache, each) for each in versions))
    missing_for_image = (*prerequisites.missing_for_chart(), *image.missing(cache))
    for line in (*missing, *missing_for_image):
        sys.stdout.write(f"e2e: missing: {line}\n")
    sys.stdout.flush()
    if options.check:
        return SKIPPED if missing or missing_for_image else 0
    if missing and options.build_only:
        return 1
    if missing:
        command = (*_PYTEST, *_OPTIONS, str(TESTS), *pytest_options)
        return run_all([World("tests", cache, command, {MISSING: "; ".join(missing)})], at_once=1)[0]
    if pytest_options and not options.build_only:
        # With nothing asked for, pytest says so.
        selections = [one for one in selections if _selects(one, pytest_options)] or selections[-1:]
    signal.signal(signal.SIGTERM, _interrupt)
    logs = cache / "logs"
    try:
        folders = {each: binaries.build(cache, each) for each in versions}
        if options.kueue:
            binaries.build_kueue(cache)
        wants_image = not missing_for_image and any(one.place == CHART for one in selections)
        archive = image.build(cache) if wants_image else None
        if not options.build_only:
            held.enter_context(binaries.only_run(cache))
            _make_fresh(logs, selections)
    except (binaries.BuildError, image.ImageError, OSError) as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("e2e: interrupted while building; the next run goes on from what Go has cached\n")
        return INTERRUPTED
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from here on the kernel ends all that we start
    if options.build_only:
        return 0
    for_chart = {MISSING: "; ".join(missing_for_image)} if archive is None else {IMAGE_ARCHIVE: str(archive)}
    worlds = [_world(one, folders[one.version], logs / one.name, for_chart, pytest_options) for one in selections]
    codes = run_all(worlds, at_once=options.at_once)
    node.remove_empty_cgroups()
    if len(codes) > 1:
        sys.stdout.write(f"{total(worlds)}\n")
    return max(codes, key=lambda code: (code not in (0, SKIPPED), code))


_PYTEST = (sys.executable, "-P", "-m", "pytest")

# The cluster starts within the time of the first test. By signal a test that hangs fails and the others run; a socket
# that it was cut off from is no error that would be told after the counts. Skips are told at the very end, once for
# each reason. The slowest tests say where the minutes of a run go: below 5 s a test waits for programs, as most do.
_OPTIONS = (
    *("-q", "-rfE", "-p", "no:cacheprovider", "-p", "no:unraisableexception"),
    *("--timeout=300", "--timeout-method=signal", "--durations=15", "--durations-min=5"),
)

_CORE = tuple(
    str(TESTS / f"test_{name}.py")
    for name in ("kubernetes", "claims", "scheduling", "taint", "writes", "own_allocations", "take_back", "transcripts")
)
"""On a second version: its rules of claims, binds and writes, and a pod at its kubelet."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make e2e", description="End-to-end tests on real Kubernetes programs.")
    parser.add_argument(
        "--check", action="store_true", help="say what is missing and stop; exit code 77 if anything is"
    )
    parser.add_argument("--build-only", action="store_true", help="build the programs and stop")
    parser.add_argument(
        "--core", action="store_true", help="only what meets the API server, kube-scheduler and kubelet head on"
    )
    parser.add_argument("--and-core-on", choices=binaries.VERSIONS, help="also what --core runs, on this version")
    parser.add_argument("--kueue", action="store_true", help="also the tests with Kueue, which is built for them")
    parser.add_argument(
        "--at-once",
        type=int,
        choices=range(1, MOST_AT_ONCE + 1),
        default=AT_ONCE,
        help="worlds that run side by side (%(default)s); with 1 each prints as it goes",
    )
    return parser


def _selections(version: str, *, core: bool, and_core_on: str | None) -> list[Selection]:
    """Return all that is asked for by options of our own, what takes longest first."""
    found = [] if core else [Selection(place, version, (str(TESTS),), place) for place in PLACES]
    for each in dict.fromkeys(filter(None, (version if core else None, and_core_on))):
        found += [Selection(place, each, _CORE, f"{place}-core-{each}") for place in PLACES if place != CHART]
    return found


def _selects(selection: Selection, options: Sequence[str]) -> bool:
    """Tell whether any test of a selection is asked for by pytest's options."""
    command = [*_PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider", *_asked(selection, options)]
    environment = {**os.environ, **_whereabouts(selection)}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    return done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED


def _asked(selection: Selection, options: Sequence[str]) -> tuple[str, ...]:
    """Return what pytest is asked for: files that its options name stand in the place of all, not of the core."""
    named = any((path := Path(option.partition("::")[0])).suffix == ".py" and path.exists() for option in options)
    return (*(() if named and selection.tests != _CORE else selection.tests), *options)


def _whereabouts(selection: Selection) -> dict[str, str]:
    return {PLACE: selection.place, binaries.VARIABLE: selection.version}


def _world(
    selection: Selection, programs: Path, logs: Path, for_chart: Mapping[str, str], pytest_options: Sequence[str]
) -> World:
    """Return the world of a selection. Where the image is missing its tests only say so, which needs no namespaces."""
    environment = {BINARIES: str(programs), LOGS: str(logs), **_whereabouts(selection)}
    start = isolation.command(())
    if selection.place == CHART:
        environment |= for_chart
        start = list(_PYTEST) if MISSING in for_chart else start
    world = World(selection.name, logs, (), environment)
    command = (*start, *_OPTIONS, f"--junitxml={world.report}", *_asked(selection, pytest_options))
    return dataclasses.replace(world, command=command)


def _make_fresh(logs: Path, selections: Sequence[Selection]) -> None:
    """Remove what earlier runs have left outside of their worlds, and make the folders of this one."""
    shutil.rmtree(logs, ignore_errors=True)
    for one in selections:
        (logs / one.name).mkdir(parents=True)
    node.remove_empty_cgroups()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
