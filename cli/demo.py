"""`dracaena demo`."""

from __future__ import annotations

import argparse

from dracaena.cli.commands import Commands, loading_extra


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="watch pods get their GPUs on recorded machines: no cluster, no GPU",
        description="Start an in-memory Kubernetes API, the controller and one plugin for each of several recorded "
        "machines, create pods and show what each got, where, by which links and why.",
    )
    parser.add_argument("--keep", action="store_true", help="keep running and say how to reach it with kubectl")
    parser.add_argument(
        "--kubernetes",
        choices=("1.37", "1.36"),
        default="1.37",
        help="version of the API server (default: %(default)s)",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines even on a terminal")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with loading_extra("demo"):
        from dracaena.demo.program import run

    return run(keep=arguments.keep, plain=arguments.plain, kubernetes=arguments.kubernetes)
