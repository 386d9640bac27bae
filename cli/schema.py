"""`dracaena schema`: JSON Schemas for editors."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dracaena.cli.commands import Commands, add_driver_name

PODLIST = "podlist"
NAMES = ("manifest", "topologypolicy", "gpuconfig", "vfioconfig", PODLIST)
"""EDITOR_SCHEMAS of dracaena.api.config.v1alpha1.schemas, which takes long to import, and that of podlist.json."""

_DESCRIPTION = """\
Print a JSON Schema with which an editor checks and completes the opaque parameters for this driver: those of a manifest
(DeviceClass, ResourceClaim, ResourceClaimTemplate), or of one kind by itself. `podlist` is the schema of podlist.json,
for programs that read it. docs/schemas/ holds the same.
"""
_EXAMPLES = """\
example:
  Let yaml-language-server check a claim while it is written
      dracaena schema > dracaena.json
      sed -i '1i # yaml-language-server: $schema=dracaena.json' claim.yaml
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "schema",
        help="print a JSON Schema of the driver's parameters, for editors, or of podlist.json",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("name", nargs="?", choices=NAMES, default=NAMES[0], help="which schema (default: %(default)s)")
    add_driver_name(parser, "DRA driver whose parameters are checked in a manifest")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    print(json.dumps(_schema(arguments.name, arguments.driver_name), indent=2))
    return 0


def _schema(name: str, driver: str) -> dict[str, Any]:
    if name == PODLIST:
        from dracaena.api.podlist import podlist_schema

        return podlist_schema()
    from dracaena.api.config.v1alpha1.schemas import editor_schema

    return editor_schema(name, driver)
