"""`dracaena topology record`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dracaena.api.errors import BadInputError
from dracaena.cli.commands import Commands
from dracaena.cli.this_machine import add_driver_root, read_this_machine

if TYPE_CHECKING:
    from dracaena.kubelet_plugin.node.live_machine import ReadingSource

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DESCRIPTION = """\
Read this machine's GPUs from the NVIDIA driver and write them as a recorded machine: JSON that can be passed to
`dracaena topology show --machine FILE` and `dracaena kubelet-plugin --machine FILE` anywhere. UUIDs and the like are
replaced; products, driver version, links, PCI addresses and how GPUs can be divided by MIG stay.
"""


def register(verbs: Commands) -> None:
    """Add the verb `record` to `dracaena topology`."""
    parser = verbs.add_parser(
        "record",
        help="write this machine as a recorded machine",
        description=_DESCRIPTION,
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="file to write (default: standard output)")
    parser.add_argument("--name", default="", help="name of the recorded machine (default: count and product)")
    add_driver_root(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, source: ReadingSource | None = None) -> int:
    """Read, replace what identifies the machine, write. Raises DracaenaError; nothing half-written stays."""
    from dracaena.api.machine_json import encode_machine
    from dracaena.kubelet_plugin.discovery.recording import recording

    if arguments.name and not _NAME.fullmatch(arguments.name):
        raise BadInputError(f"--name: {arguments.name!r} is not a name, expected lower-case letters, digits and dashes")
    reading = read_this_machine(arguments, source, mig_profiles=True)
    document = encode_machine(recording(reading.machine, name=arguments.name))
    for left_out in reading.left_out:
        if left_out.reason != "NOT_SUPPORTED":
            print(f"left out: {left_out}", file=sys.stderr)
    _write(arguments.output, document)
    return 0


def _write(output: str, document: bytes) -> None:
    from dracaena.host.adapters.files.whole_files import DocumentFolder

    if output == "-":
        sys.stdout.write(document.decode())
        return
    path = Path(output)
    if path.exists() and not path.is_file():
        raise BadInputError(f"--output: {output} is not a file that can be replaced")
    DocumentFolder(path.parent).write(path.name, document)
