"""`make e2e`: check the machine, build what is not in the cache, run the tests in a world of their own.

Exit code: 0 all passed, 1 a test failed, 77 a test was skipped, for example all of them for want of a prerequisite.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from e2e import binaries, isolation, prerequisites
from e2e.processes import end_with_parent

TESTS = Path(__file__).parent
MISSING = "DRACAENA_E2E_MISSING"
"""Environment variable for conftest.py: why no test can run."""

BINARIES = "DRACAENA_E2E_BINARIES"
LOGS = "DRACAENA_E2E_LOGS"

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
    options, pytest_options = parser.parse_known_args()
    cache = binaries.cache_root(os.environ)
    missing = prerequisites.missing(built=binaries.is_built(cache))
    for line in missing:
        sys.stdout.write(f"e2e: missing: {line}\n")
    sys.stdout.flush()
    if options.check:
        return SKIPPED if missing else 0
    if missing:
        command = [sys.executable, "-P", "-m", "pytest"]
        return _run(command, pytest_options, {MISSING: "; ".join(missing)})
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        folder = binaries.build(cache)
        logs = cache / "logs"
        if not options.build_only:
            _make_fresh(logs)
    except (binaries.BuildError, OSError) as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("e2e: interrupted while building; the next run goes on from what Go has cached\n")
        return INTERRUPTED
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from here on the kernel ends all that we start
    if options.build_only:
        return 0
    return _run(isolation.command(()), pytest_options, {BINARIES: str(folder), LOGS: str(logs)})


def _make_fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _run(command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> int:
    # The cluster starts within the time of the first test. By signal a test that hangs fails and the others run; a
    # socket that it was cut off from is no error that would be told after the counts.
    limits = ["--timeout=300", "--timeout-method=signal", "-p", "no:unraisableexception"]
    # Skips are told at the very end, once for each reason.
    arguments = ["-q", "-rfE", *limits, "-p", "no:cacheprovider", str(TESTS), *options]
    process = subprocess.Popen(
        [*command, *arguments],
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
