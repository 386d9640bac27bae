"""Checks objects of the Kubernetes API before a cluster sees them: limits, CEL, opaque configurations, references.

Pure, so that `dracaena validate` and an admission webhook give the same answer:

    for finding in validate_object(claim):
        print(finding)

An ERROR is what kube-apiserver 1.36 refuses, or what can never be fulfilled; a WARNING is what it accepts although it
certainly does something other than its author wants. docs/check.md lists both, and where they differ from the
server.
"""

from __future__ import annotations

from dracaena.validation.findings import (
    CelPosition,
    Finding,
    ObjectReference,
    Path,
    Severity,
    printable,
    render_path,
)
from dracaena.validation.objects import is_checked, is_understood, reference_to, validate_all, validate_object
from dracaena.validation.rewriting import Rewriting

__all__ = [
    "CelPosition",
    "Finding",
    "ObjectReference",
    "Path",
    "Rewriting",
    "Severity",
    "is_checked",
    "is_understood",
    "printable",
    "reference_to",
    "render_path",
    "validate_all",
    "validate_object",
]
