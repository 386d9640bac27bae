"""`dracaena completion`: what a shell needs to complete our commands and options."""

from __future__ import annotations

import argparse

from dracaena.cli.commands import Commands, loading_extra

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = """\
Print a script with which a shell completes the commands and options of dracaena. It is made of this version's own
parser: print it again after an upgrade.
"""
_EXAMPLES = """\
example:
  Complete in this session of bash
      source <(dracaena completion bash)
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell reads the script")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.cli.main import build_parser

    with loading_extra("completion"):
        import shtab
    print(shtab.complete(build_parser(), shell=arguments.shell))
    return 0
