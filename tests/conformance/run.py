"""Run the cases of a folder: `make conformance`.

The folder is named by DRACAENA_CONFORMANCE_DIR, the version whose answers it holds by DRACAENA_CONFORMANCE_KUBERNETES
(1.36 where it is not set). Each difference is printed; the last line counts. Exit code 0 when all
cases passed, 1 when one failed, 2 when there is nothing to run.

Another kind of case is a module with a function `cases(folder, version)` like `conformance.cel`, and a line in KINDS.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from conformance import allocator, cel
from conformance.case import Case, UnreadableCasesError
from dracaena.controller.allocation.legal.read.features import KubernetesVersion

VARIABLE = "DRACAENA_CONFORMANCE_DIR"
VERSION_VARIABLE = "DRACAENA_CONFORMANCE_KUBERNETES"
KINDS: tuple[Callable[[Path, KubernetesVersion], list[Case]], ...] = (cel.cases, allocator.cases)


def main() -> int:
    """Run all cases and return the exit code."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        return _refuse(f"{VARIABLE} is not set: name the folder that holds the cases (cel.json, …)")
    folder = Path(named)
    if not folder.is_dir():
        return _refuse(f"{VARIABLE} names {named}, which is no folder")
    said = os.environ.get(VERSION_VARIABLE) or "1.36"
    found = re.fullmatch(r"(1)\.([0-9]{1,3})", said)
    if found is None:
        return _refuse(f"{VERSION_VARIABLE} is {said!r}, expected a version of Kubernetes as 1.37")
    version = int(found[1]), int(found[2])
    try:
        cases = [case for kind in KINDS for case in kind(folder, version)]
    except (UnreadableCasesError, OSError) as error:
        return _refuse(str(error))
    if not cases:
        expected = f"{cel.FILE} or a folder {allocator.FOLDER}"
        return _refuse(f"{VARIABLE} names {named}, which holds no cases: expected {expected}")
    failed = sum(not _passes(case) for case in cases)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _refuse(reason: str) -> int:
    print(f"make conformance: {reason}", file=sys.stderr)
    return 2


def _passes(case: Case) -> bool:
    """Ask, and print what differs. An exception is a difference like any other: the other cases go on."""
    try:
        lines = case.differences()
    except Exception as error:  # noqa: BLE001
        lines = [f"raised {type(error).__name__}: {error}"]
    if lines:
        print(f"FAILED {case.name}")
        for line in lines:
            print("    " + line.replace("\n", "\n                "))
    return not lines


if __name__ == "__main__":
    sys.exit(main())
