"""`make e2e`: check the machine, build what is not in the cache, run the tests in a world of their own.

Exit code: 0 all passed, 1 a test failed, 77 a test was skipped, for example all of them for want of a prerequisite.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import binaries, isolation, prerequisites

TESTS = Path(__file__).parent
MISSING = "DRACAENA_E2E_MISSING"
"""Environment variable for conftest.py: why no test can run."""

BINARIES = "DRACAENA_E2E_BINARIES"
LOGS = "DRACAENA_E2E_LOGS"

SKIPPED = 77
"""Exit code that test drivers (automake, meson) read as `could not run`. make turns it into its own 2."""

_PR_SET_PDEATHSIG = 1


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
    try:
        folder = binaries.build(cache)
    except binaries.BuildError as error:
        sys.stderr.write(f"e2e: {error}\n")
        return 1
    if options.build_only:
        return 0
    logs = _fresh_folder(cache / "logs")
    return _run(isolation.command(()), pytest_options, {BINARIES: str(folder), LOGS: str(logs)})


def _fresh_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _run(command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> int:
    # The cluster starts within the time of the first test.
    # Skips are told at the very end, once for each reason.
    arguments = ["-q", "-rfE", "--timeout=300", "-p", "no:cacheprovider", str(TESTS), *options]
    process = subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, **environment},
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the tests got it too, and end their programs in order


def _end_with_parent() -> None:
    """Ask the kernel to end the new process when this one is gone, even by SIGKILL (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
