"""`dracaena doctor`: whether an installation is as it has to be, line by line. Reads only."""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from dracaena.api.errors import BadInputError
from dracaena.cli.columns import aligned, print_lines, wrapped
from dracaena.cli.commands import Commands
from dracaena.cli.connection import add_connection_options, connect

if TYPE_CHECKING:
    from dracaena.cli.installation.snapshot import Finding

EXIT_FINDINGS = 1
"""Something has to be fixed, or could not be checked."""

_DESCRIPTION: Final = """\
Check an installation through the API server: versions and APIs, the chart's classes, policies and rights, the
controller and its leader, plugins and what they publish and report, namespaces, and your own rights. Nothing is
written, and nothing on a node is touched. Each line says `ok`, `to fix` with who has to do what, or `not checked` with
why.

With --bundle what was seen is also written into a file for a report: numbers and plain names of the objects, without
messages, annotations and environment. Secrets and ConfigMaps are not read.

Exit code: 0 everything is ok, 1 something has to be fixed or could not be checked.
"""
_EXAMPLES: Final = """\
examples:
  Is my installation right?
      dracaena doctor

  What has to be fixed, for a script
      dracaena doctor -o json | jq -r '.[] | select(.state != "ok") | .text'

  For a report
      dracaena doctor --bundle dracaena.tar.gz
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="check an installation, and say who has to fix what",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--bundle", metavar="FILE", help="also write a .tar.gz for a report, without secrets")
    form = "output format (default: %(default)s)"
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=form)
    add_connection_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.cli.installation.bundle import files
    from dracaena.cli.installation.examination import examine
    from dracaena.cli.installation.snapshot import State
    from dracaena.cli.installation_reader import read_installation

    snapshot = read_installation(connect(arguments), arguments.driver_name, datetime.now(UTC))
    findings = examine(snapshot)
    if arguments.output == "json":
        print(json.dumps([_document(one) for one in findings], indent=2))
    else:
        print_lines(_lines(findings))
    if arguments.bundle:  # last: findings are shown even if it cannot be written
        write_bundle(arguments.bundle, files(snapshot, findings), snapshot.now)
    return 0 if all(one.state is State.OK for one in findings) else EXIT_FINDINGS


def write_bundle(path: str, files: Mapping[str, bytes], now: datetime) -> None:
    """Write files into a new archive that only its owner may read. Raises BadInputError if the file exists or cannot
    be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"dracaena/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}, expected the name of a new file") from error


def _document(finding: Finding) -> dict[str, str]:
    return {"check": finding.check, "state": finding.state.value, "text": str(finding)}


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    heads = list(aligned([(one.state.value, one.check) for one in findings]))
    width = max(map(len, heads)) + 2
    for head, finding in zip(heads, findings, strict=True):
        yield from (
            line if number else head.ljust(width) + line.lstrip()
            for number, line in enumerate(wrapped(str(finding), first=width, rest=width))
        )
    counts = {one.state: sum(each.state is one.state for each in findings) for one in findings}
    yield ", ".join(f"{count} {state.value}" for state, count in sorted(counts.items(), key=lambda each: each[0].value))
