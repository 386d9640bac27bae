"""`dracaena validate`: check manifests before a cluster sees them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dracaena.cli.commands import Commands, add_driver_name, add_strict

if TYPE_CHECKING:
    from dracaena.cli.document import Place
    from dracaena.cli.manifests import Source
    from dracaena.validation import Finding

EXIT_FINDINGS = 1
"""At least one error was found. Unreadable input ends with 2, as for every command."""

EXIT_UNREADABLE = 2
"""Also with --strict, of what is read and not understood."""

_DESCRIPTION = """\
Check DeviceClasses, ResourceClaims, ResourceClaimTemplates, ResourceSlices, DeviceTaintRules and the claims of pods
(also in every object that has pod templates) without a cluster: fields and limits of resource.k8s.io/v1, CEL selectors,
Dracaena's own configuration, quotas of Namespaces, and names that objects of the input use for each other. Objects of
other kinds are skipped.

An error is something that the API server would reject, or that could never be fulfilled. A warning is something that it
accepts although it surely does not do what was intended. Exit code: 0 no errors, 1 errors, 2 unreadable input
or, with --strict, objects of which it is not known what pods they make.
"""
_EPILOG = """\
example:
  $ cat claim.yaml
  apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: train}
  spec:
    devices:
      requests:
        - name: gpus
          exactly:
            deviceClassName: gpu.dracaena.dev
            count: -4
  $ dracaena validate claim.yaml
  ResourceClaim train (claim.yaml:1)
    claim.yaml:10:11: error: spec.devices.requests[0].exactly.count
      negative: -4, expected a whole number above 0
  1 object checked in 1 file: 1 error, 0 warnings

more:
  dracaena validate deploy/                              everything in a folder and below it
  helm template my-chart | dracaena validate -           the output of a chart
  kubectl get deviceclasses -o yaml | dracaena validate - -o json
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "validate",
        help="check claims, classes and pods in files, without a cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    what = "YAML or JSON file, folder with such files, or - for standard input"
    parser.add_argument("files", nargs="*", metavar="FILE", help=what)
    parser.add_argument(
        "-f",
        "--filename",
        dest="more",
        metavar="FILE",
        action="append",
        default=[],
        help="the same, in the style of kubectl and `dracaena simulate`; may be repeated",
    )
    form = "output format (default: %(default)s)"
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=form)
    add_driver_name(parser, "DRA driver whose configuration and taint are known")
    add_strict(parser)
    parser.set_defaults(run=_run, refuse=parser.error)


@dataclass(frozen=True, slots=True)
class _PlacedFinding:
    """A finding and where the object it is about stands."""

    finding: Finding
    source: Source

    @property
    def place(self) -> Place:
        return self.source.place.at(self.finding.path)


@dataclass(frozen=True, slots=True)
class _Summary:
    """What the last line says."""

    files: int
    objects: int
    not_checked: int
    errors: int
    warnings: int

    def __str__(self) -> str:
        text = f"{_counted(self.objects, 'object')} checked in {_counted(self.files, 'file')}: "
        text += f"{_counted(self.errors, 'error')}, {_counted(self.warnings, 'warning')}"
        return (
            f"{text} ({_counted(self.not_checked, 'object')} of other kinds not checked)" if self.not_checked else text
        )


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.cli.columns import print_lines, shown
    from dracaena.cli.manifests import load_manifests, not_understood
    from dracaena.validation import Severity, is_checked, validate_all

    files = [*arguments.files, *arguments.more]
    if not files:
        arguments.refuse("name at least one FILE to check, or - for standard input")
    manifests = load_manifests(files)
    unclear = not_understood(manifests.objects) if arguments.strict else ()
    for line in (*(f"left out: {line}" for line in manifests.left_out), *unclear):
        print(f"dracaena: {shown(line)}", file=sys.stderr)
    verdicts = validate_all([manifest.object for manifest in manifests.objects], arguments.driver_name)
    found = [
        each
        for manifest, findings in zip(manifests.objects, verdicts, strict=True)
        for each in _in_order(findings, manifest.source)
    ]
    errors = sum(each.finding.severity is Severity.ERROR for each in found)
    checked = sum(is_checked(manifest.object) for manifest in manifests.objects)
    summary = _Summary(
        files=len({manifest.source.file for manifest in manifests.objects}),
        objects=checked,
        not_checked=len(manifests.objects) - checked,
        errors=errors,
        warnings=len(found) - errors,
    )
    if arguments.output == "json":
        print(json.dumps(_document(found, summary), indent=2))
    else:
        print_lines((*_lines(found), str(summary)))
    if unclear:
        return EXIT_UNREADABLE
    return EXIT_FINDINGS if errors else 0


def _in_order(findings: Sequence[Finding], source: Source) -> list[_PlacedFinding]:
    """Return findings about one object as a reader of its file meets them."""
    found = [_PlacedFinding(finding, source) for finding in findings]
    return sorted(found, key=lambda each: (each.place.line, each.place.column))


def _lines(found: Sequence[_PlacedFinding]) -> Iterator[str]:
    from dracaena.validation import render_path

    about: Source | None = None
    for each in found:
        finding = each.finding
        if each.source is not about:
            about = each.source
            yield f"{finding.object} ({each.source})"
        where = f"{each.source.file}:{each.place.line}:{each.place.column}"
        yield f"  {where}: {finding.severity.value}: {render_path(finding.path)}"
        if finding.cel is None:
            seen = "" if finding.seen == "an object" else f": {finding.seen}"
            yield f"    {finding.message}{seen}, expected {finding.expected}"
        else:
            yield f"    {finding.message} (line {finding.cel.line}, column {finding.cel.column})"
            yield from (f"      {line}" for line in finding.cel.excerpt.split("\n"))


def _document(found: Sequence[_PlacedFinding], summary: _Summary) -> dict[str, Any]:
    """Return the JSON form; docs/check.md promises it."""
    return {
        "findings": [_entry(each) for each in found],
        "summary": {
            "files": summary.files,
            "objects": summary.objects,
            "notChecked": summary.not_checked,
            "errors": summary.errors,
            "warnings": summary.warnings,
        },
    }


def _entry(each: _PlacedFinding) -> dict[str, Any]:
    from dracaena.validation import render_path

    finding, about, cel = each.finding, each.finding.object, each.finding.cel
    return {
        "file": each.source.file,
        "line": each.place.line,
        "column": each.place.column,
        "object": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
        },
        "path": render_path(finding.path),
        "severity": finding.severity.value,
        "message": finding.message,
        "seen": finding.seen,
        "expected": finding.expected,
        "cel": None if cel is None else {"line": cel.line, "column": cel.column, "excerpt": cel.excerpt},
    }


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
