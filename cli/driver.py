"""`dracaena driver`: make the plugin of this node release the NVIDIA driver, and use it again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.cli.commands import Commands, add_driver_name

if TYPE_CHECKING:
    from dracaena.host.paths import PluginPaths
    from dracaena.process.clock import Clock

TIMEOUT_S = 60
"""The longest wait by default. A plugin releases the driver within a second or two; a reading may take some seconds
more if the driver initialises each GPU, without persistence mode."""

_DESCRIPTION = """\
The plugin keeps NVML open to hear of errors. Make it release the driver before the driver is updated, a GPU is reset or
a MIG mode is changed: running pods continue, pods that end are cleaned up, and no new claim is prepared on this node
until `resume`. Run this on the node, or in the plugin's pod with kubectl exec.
"""

_EXAMPLES = """\
examples:
  Reset a GPU of worker-1, where POD is the plugin's pod on it
      kubectl exec --namespace dracaena POD -- dracaena driver release --reason "reset of GPU 3"
      nvidia-smi --gpu-reset -i 3      (on the node)
      kubectl exec --namespace dracaena POD -- dracaena driver resume
"""


def register(commands: Commands) -> None:
    """Add the command and its verbs."""
    parser = commands.add_parser(
        "driver",
        help="make the plugin of this node release the NVIDIA driver, and use it again",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    release = verbs.add_parser(
        "release", help="release the driver until `resume`, even if the plugin or the node restarts"
    )
    release.add_argument("--reason", default="no reason was given", metavar="TEXT", help="text for the node's Events")
    release.add_argument(
        "--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS", help="longest wait (default: %(default)s)"
    )
    release.set_defaults(run=run_release)
    resume = verbs.add_parser("resume", help="let the plugin use the driver again")
    resume.set_defaults(run=run_resume)
    status = verbs.add_parser("status", help="say whether the driver is released, and whether a plugin has it open")
    status.set_defaults(run=run_status)
    for verb in (release, resume, status):
        add_driver_name(verb)
        verb.add_argument(
            "--kubelet-root",
            default="/var/lib/kubelet",
            metavar="FOLDER",
            help="kubelet's folder (default: %(default)s)",
        )


def run_release(arguments: argparse.Namespace, clock: Clock | None = None) -> int:
    """Ask for the release and wait for it. Raises DracaenaError; the request then stays."""
    from dracaena.host.adapters.gpu_driver.use import request_release, wait_until_let_go
    from dracaena.process.clock import SystemClock

    paths = _paths(arguments)
    request_release(paths.release_request, arguments.reason)
    if not wait_until_let_go(paths.gpu_driver_lock, clock or SystemClock(), arguments.timeout):
        raise TemporaryError(
            f"a plugin of this node still has the driver open after {arguments.timeout} s: a call into the driver may "
            "hang, which /readyz of the plugin shows. The request stays; withdraw it with `dracaena driver resume`"
        )
    print("the driver is released: no plugin of this node has it open until `dracaena driver resume`")
    return 0


def run_resume(arguments: argparse.Namespace) -> int:
    """Withdraw the request. Raises DracaenaError."""
    from dracaena.host.adapters.gpu_driver.use import withdraw

    was_released = withdraw(_paths(arguments).release_request)
    print("the plugin uses the driver again" if was_released else "the driver was not released by this command")
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """Print who asked for what. Raises DracaenaError."""
    from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, wait_until_let_go
    from dracaena.process.clock import SystemClock

    paths = _paths(arguments)
    reason = GpuDriverUse(paths.gpu_driver_lock, paths.release_request).asked()
    print("released: no" if reason is None else f"released: yes, {reason}")
    print("open in a plugin: " + ("no" if wait_until_let_go(paths.gpu_driver_lock, SystemClock(), 0) else "yes"))
    return 0


def _paths(arguments: argparse.Namespace) -> PluginPaths:
    from dracaena.host.paths import plugin_paths

    paths = plugin_paths(arguments.kubelet_root, arguments.driver_name, "")
    folder = paths.release_request.parent
    if not folder.is_dir():
        raise PermanentError(
            f"no plugin of driver {arguments.driver_name} has run here: there is no folder {folder}. Run this on the "
            "node, or name --driver-name and --kubelet-root as the plugin has them"
        )
    return paths


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return int(text)
