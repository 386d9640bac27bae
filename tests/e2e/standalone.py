"""Runs one of our modules, instead of the tests, in a world of its own: the cluster bench, the soak."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e import binaries, isolation, prerequisites
from e2e.processes import end_with_parent
from e2e.run import BINARIES, LOGS, SKIPPED


def run_alone(module: str, arguments: Sequence[str], *, name: str) -> int:
    """Run the module in fresh namespaces and return its exit code; SKIPPED where a prerequisite is missing.

    Logs of its programs go to a folder of this name in the cache. Inside, binaries_folder() and logs_folder() tell
    where things are.
    """
    cache = binaries.cache_root(os.environ)
    try:
        version = binaries.kubernetes_version(os.environ)
    except binaries.BuildError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2
    missing = prerequisites.missing(built=binaries.is_built(cache, version))
    for line in missing:
        sys.stdout.write(f"{name}: missing: {line}\n")
    if missing:
        return SKIPPED
    try:
        programs = binaries.build(cache, version)
        logs = cache / f"logs-{name}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
    except (binaries.BuildError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    process = subprocess.Popen(
        [*isolation.command(arguments, module=module)],
        env={**os.environ, BINARIES: str(programs), LOGS: str(logs), binaries.VARIABLE: version},
        preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the module got it too, and ends its programs in order


def binaries_folder() -> Path:
    """Return where the programs are. Inside only."""
    return Path(os.environ[BINARIES])


def logs_folder() -> Path:
    """Return where logs go. Inside only."""
    return Path(os.environ[LOGS])
