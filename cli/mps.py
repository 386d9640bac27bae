"""`dracaena mps`."""

from __future__ import annotations

import argparse
import os

from dracaena.cli.commands import Commands, loading_extra
from dracaena.mps.settings import MpsSettings
from dracaena.process.settings import add_arguments, load

_DESCRIPTION = """\
Run the GPU driver's Multi-Process Service (MPS) for the shares of this node's GPUs: one MPS server per GPU, started \
with the GPU's first share and stopped after its last. The kubelet plugin requests shares through files below --root \
and reads their state there; pods need not know about this program.

It sets the compute mode of a GPU with shares to EXCLUSIVE_PROCESS, so that no program can bypass MPS, and restores it \
afterwards. It restarts a daemon that died and says which clients were affected. Flags override the environment, which \
overrides --config, which overrides the defaults.
"""

_EXAMPLES = """\
examples:
  On a node, as root, in the host's PID namespace
      dracaena mps --log-format text

  See what is requested, what became of it, and what the driver's programs say
      cat /run/dracaena/mps/requests/*.json
      cat /run/dracaena/mps/status/*.json
      tail /run/dracaena/mps/log/control.log /run/dracaena/mps/log/*/*.log

  Ask the daemon itself: with protocol 3 there is one per node
      CUDA_MPS_PIPE_DIRECTORY=/run/dracaena/mps/pipe nvidia-cuda-mps-control server list

  With protocol 2 (drivers before R615) there is one per GPU
      echo get_server_list | CUDA_MPS_PIPE_DIRECTORY=/run/dracaena/mps/pipe/gpu_... nvidia-cuda-mps-control
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "mps",
        help="run the program that starts MPS servers for shared GPUs of one node",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_arguments(parser, MpsSettings)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = load(MpsSettings, arguments, os.environ)
    with loading_extra("programs"):
        from dracaena.mps.program import run

    return run(settings)
