"""`make e2e`: check the machine, build what is not in the cache, run the tests in worlds of their own.

There are two, one after the other: a cluster on which our programs run as processes, and one on which the chart is
installed. Each is left out when no test in it is asked for. KUBERNETES names the version (binaries.VERSIONS).

Exit code: 0 all passed, 1 a test failed, 2 another version was asked for than there are, 77 a test was skipped, for
example all of them for want of a prerequisite.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import pytest

from e2e import binaries, isolation, prerequisites
from e2e.install import image
from e2e.processes import end_with_parent

TESTS = Path(__file__).parent
INSTALL_TESTS = TESTS / "install"

MISSING = "DRACAENA_E2E_MISSING"
"""Environment variable for conftest.py: why no test can run."""

BINARIES = "DRACAENA_E2E_BINARIES"
LOGS = "DRACAENA_E2E_LOGS"
IMAGE_ARCHIVE = "DRACAENA_E2E_IMAGE"

SKIPPED = 77
"""Exit code that test drivers (automake, meson) read as `could not run`. make turns it into its own 2."""

INTERRUPTED = 130
"""Exit code of a shell for what Ctrl-C ended."""


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="make e2e", description="End-to-end tests on real Kubernetes programs.")
    parser.add_argument(
        "--check", action="store_true", help="say what is missing and stop; exit code 77 if anything is"
    )
    parser.add_argument("--build-only", action="store_true", help="build the programs and stop")
    parser.add_argument(
        "--core", action="store_true", help="only what meets the API server, kube-scheduler and kubelet head on"
    )
    options, pytest_options = parser.parse_known_args()
    cache = binaries.cache_root(os.environ)
    try:
        version = binaries.kubernetes_version(os.environ)
    except binaries.BuildError as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 2
    missing = prerequisites.missing(built=binaries.is_built(cache, version))
    missing_for_image = (*prerequisites.missing_for_chart(), *image.missing(cache))
    for line in (*missing, *missing_for_image):
        sys.stdout.write(f"e2e: missing: {line}\n")
    sys.stdout.flush()
    if options.check:
        return SKIPPED if missing or missing_for_image else 0
    if missing:
        return _run(_PYTEST, [str(TESTS), *pytest_options], {MISSING: "; ".join(missing)})
    cluster_tests = _CORE if options.core else _CLUSTER_WORLD
    wants_cluster = options.build_only or _selects(cluster_tests, pytest_options)
    wants_chart = not options.core and (options.build_only or _selects(_CHART_WORLD, pytest_options))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        folder = binaries.build(cache, version)
        archive = image.build(cache) if wants_chart and not missing_for_image else None
        logs = cache / "logs"
        if not options.build_only:
            _make_fresh(logs)
    except (binaries.BuildError, image.ImageError, OSError) as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("e2e: interrupted while building; the next run goes on from what Go has cached\n")
        return INTERRUPTED
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from here on the kernel ends all that we start
    if options.build_only:
        return 0
    environment = {BINARIES: str(folder), LOGS: str(logs), binaries.VARIABLE: version}
    codes: list[int] = []
    reports = (logs / "cluster.xml", logs / "chart.xml")
    if wants_cluster or not wants_chart:  # with nothing asked for, pytest says so
        arguments = [*cluster_tests, f"--junitxml={reports[0]}", *pytest_options]
        codes.append(_run(isolation.command(()), arguments, environment))
    if wants_chart:
        arguments = [*_CHART_WORLD, f"--junitxml={reports[1]}", *pytest_options]
        if archive is None:
            codes.append(_run(_PYTEST, arguments, {MISSING: "; ".join(missing_for_image)}))
        else:
            codes.append(_run(isolation.command(()), arguments, environment | {IMAGE_ARCHIVE: str(archive)}))
    if len(codes) > 1:
        sys.stdout.write(f"{_total(reports)}\n")
    return max(codes, key=lambda code: (code not in (0, SKIPPED), code))


_PYTEST = (sys.executable, "-P", "-m", "pytest")
_CLUSTER_WORLD = (str(TESTS), f"--ignore={INSTALL_TESTS}")
_CHART_WORLD = (str(INSTALL_TESTS),)
_CORE = tuple(
    str(TESTS / f"test_{name}.py")
    for name in ("kubernetes", "claims", "scheduling", "taint", "writes", "take_back", "transcripts")
)
"""On a second version: its rules of claims, binds and writes, and a pod at its kubelet."""


_SLOWEST = ("--durations=15", "--durations-min=5")
"""Printed at the end of each world: where the minutes of a run go. Below 5 s a test waits for programs, as most do."""


def _selects(arguments: Sequence[str], options: Sequence[str]) -> bool:
    """Tell whether any test of a world is asked for."""
    command = [*_PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, *options]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED


def _total(reports: Sequence[Path]) -> str:
    """Return the counts of all worlds together. A world that was cut off has no report: its exit code tells."""
    suites = [suite for path in reports if path.exists() for suite in ET.parse(path).iter("testsuite")]
    tests, failed, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    return f"{tests - failed - errors - skipped} passed, {failed + errors} failed, {skipped} skipped"


def _make_fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _run(command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> int:
    # The cluster starts within the time of the first test. By signal a test that hangs fails and the others run; a
    # socket that it was cut off from is no error that would be told after the counts.
    limits = ["--timeout=300", "--timeout-method=signal", "-p", "no:unraisableexception"]
    # Skips are told at the very end, once for each reason.
    process = subprocess.Popen(
        [*command, "-q", "-rfE", *limits, *_SLOWEST, "-p", "no:cacheprovider", *options],
        env={**os.environ, **environment},
        preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the tests got it too, and end their programs in order


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
