"""Entry point of the `dracaena` command: builds the parser, runs one sub-command, turns errors into one line."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

EXIT_FAILED = 1
"""Something outside failed that may work later."""
EXIT_BAD_INPUT = 2
"""The input must be changed; argparse ends with the same code."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output (head, less) went away."""

COMMANDS = (
    *("explain", "status", "topology", "simulate", "validate", "schema", "doctor", "demo"),
    *("controller", "kubelet-plugin", "exporter", "mps", "node-labels", "driver", "completion", "version"),
)
"""Those for users first. Each is a module next to this one, with _ for -, whose register() adds it."""

_ADVICE = {
    401: " (the cluster does not take these credentials: log in again, or name others with --kubeconfig)",
    403: " (an admin of the cluster has to grant this)",
}
"""What to do about an answer of the API server; HTTP status → words."""

_EXAMPLES = """\
examples:
  See the whole thing work, with no cluster and no GPU:
      dracaena demo

  Ask why a pod waits, or why it got the GPUs that it has:
      dracaena explain pod train -n research

  See who has which GPU of the cluster, and which are broken:
      dracaena status

  Check an installation:
      dracaena doctor

  Draw how the GPUs of this machine are linked:
      nvidia-smi topo -m | dracaena topology import -

  See what a node with these links would publish:
      dracaena topology import topo.txt -o resourceslices --node worker-1

  Look at a machine that comes with this package:
      dracaena topology machines
      dracaena topology show --machine dgx-1v

  Check claims and classes before they are applied:
      dracaena validate deploy/

  Ask what a pod would get, without a cluster:
      dracaena simulate -f cluster.yaml -f pod.yaml

  Run the two programs (see their --help for all settings):
      dracaena controller --kubeconfig ~/.kube/config
      dracaena kubelet-plugin --node-name worker-1 --machine hgx-h100
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. A wrong command line ends in SystemExit(2), as argparse does it.

    Everything else is imported in here: imports are most of a short command's time, and an interrupt during them then
    ends the command like any other.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    from dracaena.api.errors import DracaenaError, PermanentError
    from dracaena.cli.columns import shown

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without box characters shows ? in their place
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(next(iter(words), None))
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return EXIT_BAD_INPUT
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except DracaenaError as error:
        advice = _ADVICE.get(getattr(error, "status", 0), "")
        print(f"dracaena: {shown(' '.join(str(error).split()))}{advice}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, PermanentError) else EXIT_FAILED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        _silence_stdout()
        print(f"dracaena: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    return code


def _silence_stdout() -> None:
    """Give the interpreter, which flushes standard output once more at exit, a place where that cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the whole command; a chosen sub-command leaves its function in `run`.

    With the name of a sub-command it knows only that one: loading and building the others is most of the CPU time of a
    short command. Any other word gives the whole parser, whose errors and help name all sub-commands.
    """
    from dracaena import __version__
    from dracaena.cli.commands import CommandParser

    parser = CommandParser(
        prog="dracaena",
        description="Kubernetes DRA driver for NVIDIA GPUs that gives each pod the best-linked GPUs.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"dracaena {__version__}", help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS if command not in COMMANDS else (command,):
        import_module(f"dracaena.cli.{name.replace('-', '_')}").register(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
