"""Run the cases of a folder: `make conformance`.

The folder is named by DRACAENA_CONFORMANCE_DIR, the version whose answers it holds by DRACAENA_CONFORMANCE_KUBERNETES
(1.36 where it is not set). Each difference is printed; the last line counts. Exit code 0 when all
cases passed or differ as ON_PURPOSE says, 1 when one failed, 2 when there is nothing to run.

Another kind of case is a module with a function `cases(folder, version)` like `conformance.cel`, and a line in KINDS.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from conformance import allocator, cel
from conformance.case import Case, UnreadableCasesError
from dracaena.controller.allocation.legal.read.features import KubernetesVersion

VARIABLE = "DRACAENA_CONFORMANCE_DIR"
VERSION_VARIABLE = "DRACAENA_CONFORMANCE_KUBERNETES"
KINDS: tuple[Callable[[Path, KubernetesVersion], list[Case]], ...] = (cel.cases, allocator.cases)

ON_PURPOSE: Final[Mapping[tuple[KubernetesVersion, str], str]] = {
    ((1, 37), "allocator/consumable-capacity-requests-are-not-modified"): (
        "recorded with 1 for a request of 1 under `min: 2`, where the code of 0.37.1 rounds up to 2"
    ),
    ((1, 37), "allocator/consumable-capacity-range-policy-overflow-aborts-not-skip"): (
        "an amount that int64 does not hold aborts the pod, where the device alone is left out here"
    ),
}
"""Cases that are answered otherwise on purpose, with the reason: a row of docs/design/allocator.md each."""


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
    known = [case for case in cases if (version, case.name) in ON_PURPOSE]
    differ = sum(_differs(case, ON_PURPOSE[version, case.name]) for case in known)
    failed = len(known) - differ + sum(not _passes(case) for case in cases if case not in known)
    print(
        f"{len(cases) - failed - differ} passed, {failed} failed"
        + (f", {differ} different on purpose" if differ else "")
    )
    return 1 if failed else 0


def _refuse(reason: str) -> int:
    print(f"make conformance: {reason}", file=sys.stderr)
    return 2


def _differs(case: Case, reason: str) -> bool:
    """Ask, and say why the answer differs; one that does not differ any more is a failure."""
    if _differences(case):
        print(f"differs on purpose: {case.name}: {reason}")
        return True
    print(f"FAILED {case.name}\n    no longer differs: take it out of ON_PURPOSE and of docs/design/allocator.md")
    return False


def _differences(case: Case) -> list[str]:
    """Ask. An exception is a difference like any other: the other cases go on."""
    try:
        return case.differences()
    except Exception as error:  # noqa: BLE001
        return [f"raised {type(error).__name__}: {error}"]


def _passes(case: Case) -> bool:
    """Ask, and print what differs."""
    lines = _differences(case)
    if lines:
        print(f"FAILED {case.name}")
        for line in lines:
            print("    " + line.replace("\n", "\n                "))
    return not lines


if __name__ == "__main__":
    sys.exit(main())
