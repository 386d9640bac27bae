"""`dracaena node-labels`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dracaena.api.errors import BadInputError, DracaenaError, TemporaryError
from dracaena.cli.commands import Commands
from dracaena.cli.connection import add_connection_options, connect
from dracaena.cli.this_machine import add_nvml, this_machine

if TYPE_CHECKING:
    from dracaena.api.machine import Machine
    from dracaena.host.adapters.nvml.library import Permission
    from dracaena.host.facts.machine import LeftOut
    from dracaena.kube.client import KubeClient
    from dracaena.kubelet_plugin.discovery.build import Reading
    from dracaena.kubelet_plugin.discovery.publish.node_labels import LabelFacts
    from dracaena.kubelet_plugin.node.live_machine import ReadingSource

_STRATEGIES = ("none", "single", "mixed")
"""MIG_STRATEGIES of dracaena.kubelet_plugin.discovery.publish.node_labels, which is not loaded for --help."""

_DESCRIPTION = """\
Describe the GPUs of this node in labels: those of NVIDIA's GPU feature discovery, by the same names and values, and
some that say how the GPUs are linked. With --output-file the labels go into a feature file that node-feature-discovery
turns into labels, so this command needs no rights in the cluster. With --interval the file is written again whenever
something has changed, and removed at the end. With --patch-node the command labels the Node itself, and removes labels
that it set before and that no longer apply; at the end the labels stay until --remove removes them. Labels of others
are left alone.
"""
_EXAMPLES = """\
examples:
  Which labels would a recorded machine get?
      dracaena node-labels --machine hgx-h100

  Label this node through node-feature-discovery until the command is ended
      dracaena node-labels --nvml --interval 60 \\
          --output-file /etc/kubernetes/node-feature-discovery/features.d/dracaena

  Remove the labels that this command gave to a node
      dracaena node-labels --remove --patch-node gpu-node-1
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "node-labels",
        help="describe the GPUs of a node in the labels of GPU feature discovery",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--machine", metavar="NAME|FILE", help="a recorded machine, see `dracaena topology machines`")
    add_nvml(sources, parser)
    sources.add_argument("--remove", action="store_true", help="remove what this command set on the --patch-node")
    parser.add_argument("--mig-strategy", choices=_STRATEGIES, default="none", help="how MIG devices are counted")
    parser.add_argument("--no-timestamp", action="store_true", help="leave nvidia.com/gfd.timestamp out")
    parser.add_argument(
        "--machine-type-file",
        metavar="FILE",
        default="/sys/class/dmi/id/product_name",
        help="file with the machine's product name (default: %(default)s)",
    )
    outputs = parser.add_mutually_exclusive_group()
    outputs.add_argument("--output-file", metavar="FILE", default="", help="file to write (default: standard output)")
    outputs.add_argument("--patch-node", metavar="NAME", default="", help="Node of the cluster to label")
    parser.add_argument("--interval", metavar="SECONDS", type=_seconds, help="repeat at this interval until ended")
    parser.add_argument(
        "--kubelet-root",
        default="",
        metavar="FOLDER",
        help="kubelet's folder; if given, the driver is not used while it is released by `dracaena driver release`",
    )
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(
    arguments: argparse.Namespace,
    source: ReadingSource | None = None,
    now_s: Callable[[], float] = time.time,
    wait: Callable[[float], bool] | None = None,
) -> int:
    """Write the labels once, or until `wait` returns that the program has to end. Raises DracaenaError."""
    if arguments.remove and (not arguments.patch_node or arguments.interval is not None):
        raise BadInputError(
            "--remove removes labels from a Node once: name the Node with --patch-node, and leave out --interval"
        )
    client = connect(arguments) if arguments.patch_node else None
    if arguments.interval is None:
        with _machines(arguments, source) as look:
            _put(arguments, client, _labels(arguments, look(), now_s))
        return 0
    if not arguments.output_file and client is None:
        raise BadInputError("--interval writes repeatedly: say where to with --output-file or --patch-node")
    wait = wait or _wait_for_signal()  # before there is a thread, which would take the signals and end us
    began_s = now_s()  # one timestamp for all of them, so that equal labels are not written again
    try:
        with _machines(arguments, source) as look:
            while True:
                try:
                    _put(arguments, client, _labels(arguments, look(), lambda: began_s))
                except DracaenaError as error:
                    print(f"labels stay as they are: {error}", file=sys.stderr)
                if wait(arguments.interval):
                    return 0
    finally:
        if arguments.output_file:
            Path(arguments.output_file).unlink(missing_ok=True)  # then node-feature-discovery removes the labels


@contextmanager
def _machines(arguments: argparse.Namespace, source: ReadingSource | None) -> Iterator[Callable[[], Machine | None]]:
    """Yield a function that returns the machine as it is now; None if there is none: then the labels are removed."""
    from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine

    if not arguments.nvml:
        yield lambda: None if arguments.remove else read_machine(arguments.machine)
        return
    with this_machine(arguments, source, _permission(arguments), passthrough=True) as read:
        yield _WholeReadings(read, arguments.interval).look


class _WholeReadings:
    """The machine, from complete readings only: labels made from half a reading would be missing some.

    A reading with open questions counts only once it has stayed the same for POORER_S, so that a lost GPU does not
    freeze the labels of the others.
    """

    def __init__(self, read: Callable[[], Reading], interval_s: float | None) -> None:
        self._read = read
        self._interval_s = interval_s
        self._accepted = 0
        self._poorer: tuple[Reading, float] | None = None

    def look(self) -> Machine:
        """Return the machine. Raises DracaenaError, also if the driver describes only part of it."""
        from dracaena.kubelet_plugin.discovery.publish.node_labels import open_questions

        reading = self._read()
        questions = open_questions(reading.left_out)
        if len(questions) > self._accepted and not self._has_come_long(reading):
            raise _incomplete(questions, self._interval_s)
        self._accepted, self._poorer = len(questions), None
        return reading.machine

    def _has_come_long(self, reading: Reading) -> bool:
        from dracaena.kubelet_plugin.node.live_machine import POORER_S

        before, waited_s = self._poorer or (None, 0.0)
        waited_s = waited_s + (self._interval_s or 0.0) if before == reading else 0.0
        self._poorer = (reading, waited_s)
        return waited_s >= POORER_S


def _incomplete(questions: Sequence[LeftOut], interval_s: float | None) -> TemporaryError:
    from dracaena.kubelet_plugin.node.live_machine import POORER_S

    seen = f"the NVIDIA driver left questions unanswered: {len(questions)} (first: {questions[0]})"
    if interval_s is not None:
        return TemporaryError(f"{seen}; its answers count once they have stayed like this for {POORER_S:.0f} s")
    return TemporaryError(
        f"{seen}; labels would be missing or wrong, so none is written: try again. If a GPU is lost, which "
        f"`nvidia-smi` shows, --interval writes the labels of the others after {POORER_S:.0f} s"
    )


def _labels(arguments: argparse.Namespace, machine: Machine | None, now_s: Callable[[], float]) -> Mapping[str, str]:
    from dracaena.kubelet_plugin.discovery.publish.node_labels import node_labels

    if machine is None:
        return {}
    addresses = [gpu.pci_bus_id or "" for gpu in machine.gpus if gpu.pci_bus_id not in machine.vgpu_parents]
    return node_labels(machine, _facts(arguments, addresses, now_s), arguments.driver_name)


def _permission(arguments: argparse.Namespace) -> Permission | None:
    if not arguments.kubelet_root:
        return None
    from dracaena.host.adapters.gpu_driver.use import GpuDriverUse
    from dracaena.host.gpu_driver.permission import GpuDriverPermission
    from dracaena.host.paths import plugin_paths

    paths = plugin_paths(arguments.kubelet_root, arguments.driver_name, "")
    return GpuDriverPermission(GpuDriverUse(paths.gpu_driver_lock, paths.release_request))


def _facts(arguments: argparse.Namespace, addresses: Sequence[str], now_s: Callable[[], float]) -> LabelFacts:
    """Return the facts about this node; none with a recorded machine, for that is another machine. `addresses`: of the
    GPUs; empty where unknown."""
    from dracaena.kubelet_plugin.discovery.publish.node_labels import UNKNOWN, LabelFacts, gpu_mode

    timestamp_s = None if arguments.no_timestamp else int(now_s())
    if not arguments.nvml:
        return LabelFacts(mig_strategy=arguments.mig_strategy, timestamp_s=timestamp_s)
    classes = [_text(Path("/sys/bus/pci/devices") / address / "class") if address else "" for address in addresses]
    return LabelFacts(
        machine_type=_text(Path(arguments.machine_type_file)) or UNKNOWN,
        mode=gpu_mode(classes),
        mig_strategy=arguments.mig_strategy,
        is_from_driver=True,
        timestamp_s=timestamp_s,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _put(arguments: argparse.Namespace, client: KubeClient | None, labels: Mapping[str, str]) -> None:
    from dracaena.host.adapters.files.whole_files import DocumentFolder
    from dracaena.kubelet_plugin.discovery.publish.node_labels import feature_file

    if client is not None:
        _patch(client, arguments.patch_node, labels, arguments.driver_name)
    elif not arguments.output_file:
        sys.stdout.write(feature_file(labels).decode())
    else:
        path = Path(arguments.output_file)
        DocumentFolder(path.parent).write_if_changed(path.name, feature_file(labels))


def _patch(client: KubeClient, name: str, labels: Mapping[str, str], driver: str) -> None:
    from dracaena.kubelet_plugin.node.label_writing import write_node_labels

    changed = write_node_labels(client, name, labels, driver)
    print(f"Node {name}: " + (f"changed {', '.join(changed)}" if changed else "has its labels"), flush=True)


def _wait_for_signal() -> Callable[[float], bool]:
    """Block the signals that end us from now on; return a function that waits for one and returns whether it came."""
    import signal

    from dracaena.process.ending import END_SIGNALS, hold_end_signals

    hold_end_signals()
    return lambda timeout_s: signal.sigtimedwait(END_SIGNALS, timeout_s) is not None


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return float(text)
