"""How the demo looks: headings, tables and a live table on a terminal; plain lines in a log. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dracaena.api.decision import Decision
from dracaena.api.slice_drawing import draw_slices
from dracaena.api.tree import render_tree
from dracaena.demo.observation import Observation, ObservedNode, ObservedPod, links_in_words

WIDTH = 100
"""Width of the output unless the terminal is narrower: what CI logs show without wrapping."""

STATE_STYLES = {
    "Running": "green",
    "Pending": "yellow",
    "Allocated": "blue",
    "Preparing": "cyan",
    "Terminating": "magenta",
}


class View:
    """Prints to one console. `plain` never moves the cursor: one line for each change."""

    def __init__(self, *, plain: bool, elapsed_s: Callable[[], float]) -> None:
        console = Console(highlight=False, soft_wrap=False, color_system=None) if plain else Console(highlight=False)
        console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
        self._console = console
        self._elapsed_s = elapsed_s
        self._live = not plain and console.is_terminal
        self._section = 0

    def title(self, text: str, *lines: str) -> None:
        """Print the first lines of the demo."""
        self._print(Text(text, style="bold"))
        for line in lines:
            self._print(Text(line, style="dim"))

    def section(self, text: str) -> None:
        """Begin the next numbered part."""
        self._section += 1
        self._print(Text(f"\n{self._section}. {text}", style="bold cyan"))

    def note(self, text: str) -> None:
        """Print one line of explanation."""
        self._indented(Text(text, style="dim"))

    def text(self, text: str) -> None:
        """Print a text as it is, wrapped at the width."""
        self._indented(Text(text))

    def error(self, text: str) -> None:
        """Print what went wrong."""
        self._print(Text(text, style="bold red"))

    def success(self, text: str) -> None:
        """Print the last line of a successful run."""
        self._print(Text(f"\n{text}", style="bold green"))

    def _indented(self, what: RenderableType, columns: int = 2) -> None:
        self._print(Padding(what, (0, 0, 0, columns), expand=False))

    def _print(self, what: RenderableType) -> None:
        """Print without the trailing blanks of tables: logs and diffs show them."""
        with self._console.capture() as capture:
            self._console.print(what)
        self._console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
        self._console.file.flush()

    # tables

    def nodes(self, nodes: Sequence[ObservedNode], machines: dict[str, str]) -> None:
        """Print what each node published."""
        table = _table("NODE", "RECORDING", "GPUS", "LINKS OF ALL PAIRS")
        for node in nodes:
            topology = node.machine.topology
            table.add_row(
                node.name, machines[node.name], _products(node), links_in_words(topology, range(topology.gpu_count))
            )
        self._indented(table)

    def manifests(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print what is applied, a file with its comment."""
        table = _table("FILE", "WHAT IT ASKS FOR")
        for file, comment in rows:
            table.add_row(file, comment)
        self._indented(table)

    @contextmanager
    def following(self) -> Iterator[Callable[[Observation], None]]:
        """Yield a function that shows the latest state of all pods: as a live table, or as lines about changes."""
        if self._live:
            with Live(console=self._console, refresh_per_second=8, transient=True) as live:
                yield lambda observation: live.update(Padding(_pod_table(observation.pods), (0, 0, 0, 2)))
            return
        shown: dict[str, str] = {}

        def print_changes(observation: Observation) -> None:
            for pod in observation.pods:
                line = _pod_line(pod)
                if shown.get(pod.name) != line:
                    shown[pod.name] = line
                    text = Text(f"{self._elapsed_s():5.1f} s  {line}", no_wrap=True, overflow="ellipsis")
                    self._indented(text)

        yield print_changes

    def pods(self, pods: Sequence[ObservedPod]) -> None:
        """Print the table of all pods."""
        self._indented(_pod_table(pods))

    def decisions(self, decisions: Sequence[tuple[str, Decision]]) -> None:
        """Print what each pod got, the best other choice, and what decided between the two."""
        table = _table("POD", "CHOSEN", "NOT CHOSEN", "WHICH WAS WORSE IN")
        for pod, decision in decisions:
            second = decision.runner_up
            instead = f"{second.node}: {second.links}" if second else "there was no other set"
            table.add_row(pod, f"{decision.node}: {decision.links}", instead, second.lost_by if second else "")
        self._indented(table)

    def events(self, rows: Sequence[tuple[str, str, str, str]]) -> None:
        """Print Events: pod, component, reason, message."""
        table = _table("POD", "FROM", "EVENT", "MESSAGE")
        for row in rows:
            table.add_row(*row)
        self._indented(table)

    def tree(self, heading: str, node: ObservedNode) -> None:
        """Print a node's tree, each GPU with the pod that holds it."""
        labels = {ordinal: node.label(ordinal) for ordinal in range(len(node.machine.gpus))}
        self._indented(Text(heading, style="bold"))
        for line in render_tree(node.machine, labels):
            text = Text(line, no_wrap=True, overflow="ellipsis")
            text.highlight_regex(r"\[free\]", "dim")
            text.highlight_regex(r"\[(?!free).*\]", "bold green")
            self._indented(text)
        for line in _cut(node):
            self._indented(Text(line, no_wrap=True, overflow="ellipsis"))

    def document(self, heading: str, text: str) -> None:
        """Print a file or a value from the cluster under its name."""
        self._indented(Text(heading, style="bold"))
        for line in text.rstrip("\n").split("\n"):
            self._indented(Text("\n".join(fold(line, self._console.width - 4))), columns=4)

    def free_counts(self, before: Sequence[ObservedNode], after: Sequence[ObservedNode]) -> None:
        """Print how many GPUs of each node were and are free."""
        table = _table("NODE", "GPUS", "FREE BEFORE", "FREE NOW")
        for old, new in zip(before, after, strict=True):
            table.add_row(new.name, str(len(new.machine.gpus)), str(old.free), str(new.free))
        self._indented(table)

    def checks(self, rows: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Print each claim that the demo makes, and what contradicts it."""
        for text, problems in rows:
            mark = Text("✗ ", style="bold red") if problems else Text("✓ ", style="bold green")
            self._indented(mark + Text(text))
            for problem in problems:
                self._indented(Text(problem, style="red"), columns=6)

    def path(self, path: Path, root: Path) -> str:
        """Return a path of the cluster as it is shown: below its folder."""
        return str(path.relative_to(root))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, overflow="fold")
    table.add_column(columns[-1], overflow="fold")
    return table


def _pod_table(pods: Sequence[ObservedPod]) -> Table:
    table = _table("POD", "ASKS", "STATE", "NODE", "GPUS", "LINKS, OR WHY IT WAITS")
    for pod in pods:
        state = Text(pod.state, style=STATE_STYLES.get(pod.state, ""))
        asks = "" if pod.wanted is None else str(pod.wanted)
        table.add_row(pod.name, asks, state, pod.node, spans(pod.indexes), _links_or_reason(pod))
    return table


def _pod_line(pod: ObservedPod) -> str:
    asks = "" if pod.wanted is None else f"{pod.wanted} GPU{'s' if pod.wanted > 1 else ''}"
    place = f"{pod.node} GPU {spans(pod.indexes)}" if pod.indexes else pod.node
    rest = "  ".join(part for part in (place, _links_or_reason(pod)) if part)
    return f"{pod.name:<9} {asks:<8} {pod.state:<11} {rest}"


def _links_or_reason(pod: ObservedPod) -> str:
    if pod.waits and pod.state != "Terminating":
        return pod.waits
    return pod.links or pod.amounts or ("one GPU" if pod.ordinals else "")


def _cut(node: ObservedNode) -> Iterator[str]:
    """Draw the memory slices of each GPU that is divided now, and say who has which part."""
    for ordinal in sorted({part.ordinal for part in node.parts}):
        parts = [part for part in node.parts if part.ordinal == ordinal]
        drawn = draw_slices(node.slices[ordinal], [(part.start, part.size, part.profile) for part in parts])
        yield f"GPU{node.machine.gpus[ordinal].index}  {drawn}"
        yield from (f"  {part.profile} at {part.start}  [{', '.join(part.holders)}]" for part in parts)


def _products(node: ObservedNode) -> str:
    names = sorted({gpu.product_name or "GPU" for gpu in node.machine.gpus})
    return f"{len(node.machine.gpus)} × {', '.join(names)}"


def fold(line: str, width: int) -> list[str]:
    """Break a long line of JSON after commas, so that no UUID is split; a longer piece stays whole."""
    folded, pieces = [""], line.split(",")
    for position, piece in enumerate(pieces):
        part = piece if position == len(pieces) - 1 else f"{piece},"
        if folded[-1] and len(folded[-1]) + len(part) > width:
            folded.append("")
        folded[-1] += part
    return folded


def spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers with neighbours joined into ranges: `0-3,5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
