"""Record the limits of the API from the sources of Kubernetes 1.37. For developers; needs Go with these modules.

    PYTHONPATH=tests .venv/bin/python -P -m conformance.record_limits

Writes tests/unit/api/limits.json, which tests/unit/api/test_limits.py compares `api/limits.py` with.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

VERSIONS = {
    "k8s.io/api": "v0.37.1",
    "k8s.io/apimachinery": "v0.37.1",
    "k8s.io/apiserver": "v0.37.1",
    "k8s.io/kubernetes": "v1.37.1",
    "sigs.k8s.io/json": "v0.0.0-20250730193827-2d320260d730",
}

FILES = {
    "k8s.io/api/resource/v1/types.go": r"\w*(?:Max|Limit)\w*",
    "k8s.io/apimachinery/pkg/api/validate/content/kube.go": r"\w*MaxLength",
    "k8s.io/apimachinery/pkg/util/validation/validation.go": r"\w*MaxLength",
    "k8s.io/apimachinery/pkg/api/validation/objectmeta.go": r"TotalAnnotationSizeLimitB",
    "k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go": r"FieldManagerMaxLength|max\w+Len",
    "k8s.io/apimachinery/pkg/util/managedfields/internal/fieldmanager.go": r"DefaultMaxUpdateManagers",
    "k8s.io/apiserver/pkg/storage/names/generate.go": r"maxNameLength|randomLength",
    "k8s.io/apiserver/pkg/server/config.go": r"MaxRequestBodyBytes",
    "k8s.io/apiserver/pkg/endpoints/handlers/patch.go": r"maxJSONPatchOperations",
    "k8s.io/kubernetes/pkg/apis/core/validation/events.go": r"\w+LengthLimit",
    "k8s.io/kubernetes/pkg/apis/resource/types.go": r"CapacityRequestPolicyDiscreteMaxOptions",
    "sigs.k8s.io/json/internal/golang/encoding/json/scanner.go": r"maxNestingDepth",
}
"""File → names of the constants in it."""

RECORD = Path(__file__).resolve().parents[1] / "unit" / "api" / "limits.json"


def constants(source: str, names: str) -> dict[str, str]:
    """Return the constants and defaults of a Go file with such names, each with what it is set to."""
    found = re.findall(rf"^(?:const|var)?\s*({names})(?: int)?\s*[=:]\s*([^/\n,]+)", source, re.MULTILINE)
    return {name: re.sub(r"int64|[\s()]", "", text) for name, text in found}


def value(text: str, known: dict[str, int]) -> int | None:
    """Return the number that a product of numbers, or the name of another constant, is."""
    if re.fullmatch(r"\d+(<<\d+)?(\*\d+(<<\d+)?)*", text):
        shifted = (factor.partition("<<") for factor in text.split("*"))
        return math.prod(int(number) << int(bits or 0) for number, _, bits in shifted)
    return known.get(text.rpartition(".")[2])


def record(cache: Path) -> dict[str, dict[str, int]]:
    """Return the constants of each file."""
    texts = {}
    for file, names in FILES.items():
        module = next(module for module in VERSIONS if file.startswith(f"{module}/"))
        path = cache / f"{module}@{VERSIONS[module]}" / file.removeprefix(f"{module}/")
        texts[file] = constants(path.read_text(encoding="utf-8"), names)
    known: dict[str, int] = {}
    for _ in range(2):  # some are set to others
        for found in texts.values():
            known |= {name: number for name, text in found.items() if (number := value(text, known)) is not None}
    return {file: {name: known[name] for name in sorted(found) if name in known} for file, found in texts.items()}


def main() -> None:
    """Write the record."""
    cache = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    RECORD.write_text(json.dumps(record(Path(cache)), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
