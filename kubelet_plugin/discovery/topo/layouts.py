"""The two layouts in which people share `nvidia-smi topo -m`: columns of blanks and tabs, and Markdown tables.

One line in, one header or row out. Which lines belong together is up to topo.table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dracaena.api.errors import BadInputError


class TopoTextError(BadInputError):
    """A text is not a readable GPU matrix: which line, what it has, what was expected."""

    def __init__(self, line: int, seen: str, expected: str) -> None:
        self.line = line
        """Number of the line, from 1."""
        self.seen = seen
        self.expected = expected
        super().__init__(f"line {line}: {seen}, expected {expected}")


class Affinity(Enum):
    """The columns to the right of the links."""

    CPU = "CPU Affinity"
    NUMA = "NUMA Affinity"
    GPU_NUMA_ID = "GPU NUMA ID"


@dataclass(frozen=True, slots=True)
class PipeColumns:
    """The positions of the columns of a Markdown table: people reorder them."""

    width: int
    links: tuple[int, ...]
    affinity: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The line above the rows. The links of a row are to the GPUs, then to the NICs, in the order given here."""

    line: int
    gpus: tuple[int, ...]
    """GPU numbers: 3 for `GPU3`."""
    nics: tuple[str, ...]
    affinity: tuple[Affinity, ...]
    pipes: PipeColumns | None = None
    """Only for a Markdown table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Labels of the link columns; rows carry the same labels."""
        return (*(f"GPU{number}" for number in self.gpus), *self.nics)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the matrix."""

    line: int
    label: str
    links: tuple[str, ...]
    """One token for each of the header's columns, as printed."""
    cells: tuple[str, ...]
    """The affinity cells that are not empty, as printed, from the left."""
    affinity: Mapping[Affinity, str]
    """The cells by column; a column is left out where it is empty or unclear which cell belongs to it."""


LINK_TOKEN = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
_LINK_RUN = re.compile(f"(?:{LINK_TOKEN.pattern})+")
P2P_STATUSES = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))
"""What `nvidia-smi topo -p2p` prints in a matrix of the same shape."""

_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]|\[[0-9;]*m")
"""Terminal codes; also as `^[[4m` and as the `[4m` that is left when a paste drops the escape byte."""
_PREFIX = re.compile(r"[^A-Za-z0-9]*")
"""Indentation, comment marks, quotes: whatever people put before a line."""
_GPU = re.compile(r"\s*GPU([0-9]{1,6})(?![0-9])")
_LABEL = re.compile(r"([A-Za-z][\w.:-]*?)(?=[\s|]|$)")
_WORD = re.compile(r"\s*(\S+)")
_NIC = re.compile(r"(?=\S*[0-9])[A-Za-z][\w.-]*")
_GLUED_NICS = re.compile(r"(?:(?:NIC|mlx[0-9]+_)[0-9]+)+")
_ONE_NIC = re.compile(r"(?:NIC|mlx[0-9]+_)[0-9]+?(?=NIC|mlx|$)")
_AFFINITY = re.compile(r"(CPU\s*Affinity)|(GPU\s*NUMA\s*ID)|(NUMA(?:\s*Affinity)?)")
_AFFINITY_OF_GROUP = (Affinity.CPU, Affinity.GPU_NUMA_ID, Affinity.NUMA)
_AFFINITY_CELL = re.compile(r"\s*(?P<word>NUMA\s+)?(?P<cell>N/A|[0-9][0-9-]*(?:, ?[0-9][0-9-]*)*,?(?:\.\.\.)?)(?=\s|$)")
_LONGEST_QUOTE = 40
"""Characters of the input shown in an error: enough to find the place, short enough for one line."""


def quote(text: str) -> str:
    """Return text of the input as it may stand in a one-line message."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


def clean(line: str) -> str:
    """Return a line without terminal codes."""
    return _ANSI.sub("", line)


def is_pipe_line(line: str) -> bool:
    """Whether this is a line of a Markdown table."""
    return line.count("|") > 1


def pipe_cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table, without marks of emphasis and code."""
    inner = line[line.index("|") + 1 :].rstrip()
    if not line[: line.index("|")].strip(" \t#*>/`"):
        cells = inner.removesuffix("|").split("|")
    else:
        cells = line.strip().removesuffix("|").split("|")
    return [cell.strip(" \t*`") for cell in cells]


def is_separator(line: str) -> bool:
    """Whether this is an empty line or the rule below the header of a Markdown table."""
    return not line.strip(" \t\r|:-=+#*>/`")


def is_header(line: str) -> bool:
    """Whether a line starts with GPU numbers and shows no links: it is a header if a row follows."""
    if is_pipe_line(line):
        cells = pipe_cells(line)
        return any(_GPU.fullmatch(cell) for cell in cells) and not any(map(is_link, cells))
    gpus, end = _leading_gpus(line)
    words = line[end:].split()
    if not gpus or any(map(is_link, words)):
        return False
    return len(gpus) > 1 or not words or bool(_AFFINITY.match(line[end:].lstrip()) or _NIC.fullmatch(words[0]))


def is_link(word: str) -> bool:
    """Whether this is a link token, or several glued together."""
    return _LINK_RUN.fullmatch(word) is not None


def row_label(line: str) -> str | None:
    """Return the first word of a line after whatever people put before it; in a Markdown table the first GPU or NIC."""
    if is_pipe_line(line):
        return next((cell for cell in pipe_cells(line) if _NIC.fullmatch(cell)), None)
    match = _LABEL.match(line, _prefix_end(line))
    return match[1] if match else None


def is_gpu_row(line: str) -> bool:
    """Whether a line may be a row of a GPU: its label is a GPU, and it is no header."""
    label = row_label(line)
    return label is not None and _GPU.fullmatch(label) is not None and not is_header(line)


def first_cells(line: str) -> list[str]:
    """Return the words or cells after the label, to tell one kind of matrix from another."""
    if is_pipe_line(line):
        cells = pipe_cells(line)
        label = row_label(line)
        return [cell for cell in cells[cells.index(label) + 1 :] if cell] if label in cells else []
    label_match = _LABEL.match(line, _prefix_end(line))
    return line[label_match.end() :].split() if label_match else []


def read_header(number: int, line: str) -> Header:
    """Read a line for which is_header is true. Raises TopoTextError for columns that cannot be told apart."""
    header = _read_pipe_header(number, line) if is_pipe_line(line) else _read_plain_header(number, line)
    seen: set[str] = set()
    for column in header.columns:
        if column in seen:
            raise TopoTextError(number, f"column {column} appears twice", "each GPU and NIC once")
        seen.add(column)
    return header


def read_row(number: int, line: str, label: str, header: Header) -> Row:
    """Read a row with that label. Raises TopoTextError naming the first cell that is missing, unknown or too many."""
    if header.pipes is not None:
        return _read_pipe_row(number, line, label, header, header.pipes)
    label_match = _LABEL.match(line, _prefix_end(line))
    assert label_match is not None  # the caller took the label from this line
    links, end = _read_links(number, line, label_match.end(), header)
    cells, affinity = _read_affinity(line[end:], header.affinity)
    return Row(number, label, links, cells, affinity)


def _prefix_end(line: str) -> int:
    match = _PREFIX.match(line)
    return match.end() if match else 0


def _leading_gpus(line: str) -> tuple[list[int], int]:
    position = _prefix_end(line)
    gpus = []
    while match := _GPU.match(line, position):
        gpus.append(int(match[1]))
        position = match.end()
    return gpus, position


def _read_plain_header(number: int, line: str) -> Header:
    line = re.sub(r"(?<=[0-9])(?=CPU\s*Affinity)", " ", line)
    gpus, position = _leading_gpus(line)
    nics: list[str] = []
    while (word := _WORD.match(line, position)) and not _AFFINITY.match(line, word.start(1)):
        if _GPU.match(word[1]):
            raise TopoTextError(
                number, f"{quote(word[1])} after {nics[-1] if nics else 'the GPUs'}", "GPUs before NICs"
            )
        if not _NIC.fullmatch(word[1]):
            break
        nics.extend(_ONE_NIC.findall(word[1]) if _GLUED_NICS.fullmatch(word[1]) else [word[1]])
        position = word.end()
    affinity = [_AFFINITY_OF_GROUP[(match.lastindex or 1) - 1] for match in _AFFINITY.finditer(line, position)]
    return Header(number, tuple(gpus), tuple(nics), tuple(dict.fromkeys(affinity)))


def _read_pipe_header(number: int, line: str) -> Header:
    cells = pipe_cells(line)
    gpus = [(int(match[1]), at) for at, cell in enumerate(cells) if (match := _GPU.fullmatch(cell))]
    affinity = [
        (_AFFINITY_OF_GROUP[(match.lastindex or 1) - 1], at)
        for at, cell in enumerate(cells)
        if (match := _AFFINITY.fullmatch(cell))
    ]
    taken = {at for _, at in (*gpus, *affinity)}
    nics = [(cell, at) for at, cell in enumerate(cells) if at not in taken and _NIC.fullmatch(cell)]
    return Header(
        number,
        gpus=tuple(gpu for gpu, _ in gpus),
        nics=tuple(nic for nic, _ in nics),
        affinity=tuple(kind for kind, _ in affinity),
        pipes=PipeColumns(len(cells), tuple(at for _, at in (*gpus, *nics)), tuple(at for _, at in affinity)),
    )


def _read_links(number: int, line: str, position: int, header: Header) -> tuple[tuple[str, ...], int]:
    """Read one token per column; cells may be glued (`SYSSYS`). Return them and where the next text starts."""
    links: list[str] = []
    columns = header.columns
    for column in columns:
        start = _skip_blanks(line, position)
        match = LINK_TOKEN.match(line, start)
        if match is None:
            raise TopoTextError(number, _seen(line, start), f"a link token in column {column}")
        links.append(match[0])
        position = match.end()
    if position < len(line) and not line[position].isspace():
        raise TopoTextError(number, _seen(line, position), f"a link token in column {columns[-1]}")
    following = _WORD.match(line, position)
    if following and LINK_TOKEN.fullmatch(following[1]):
        raise TopoTextError(
            number, f"{quote(following[1])} after the last column", f"{len(columns)} links as in line {header.line}"
        )
    return tuple(links), position


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position].isspace():
        position += 1
    return position


def _seen(line: str, position: int) -> str:
    """Return the whole word around a position in a line, or a note that the line ends there."""
    if position >= len(line):
        return "the line ends"
    start = position
    while start > 0 and not line[start - 1].isspace() and position - start < _LONGEST_QUOTE:
        start -= 1
    word = _WORD.match(line, start)
    return quote(word[1]) if word else "the line ends"


def _read_affinity(rest: str, columns: tuple[Affinity, ...]) -> tuple[tuple[str, ...], Mapping[Affinity, str]]:
    """Read the cells after the links up to the first other word; return them all, and those of each column."""
    cells: list[str] = []
    named: dict[Affinity, str] = {}
    position = 0
    at_most = len(columns) or len(Affinity)
    while len(cells) < at_most and (match := _AFFINITY_CELL.match(rest, position)):
        cells.append(match["cell"])
        if match["word"]:
            named[Affinity.NUMA] = match["cell"]
        position = match.end()
    return tuple(cells), named or _place(rest, cells, columns)


def _place(rest: str, cells: list[str], columns: tuple[Affinity, ...]) -> Mapping[Affinity, str]:
    """Assign cells to columns: by order if none is empty, by tabs if there are any, otherwise not at all.

    nvidia-smi prints one tab too many before its last column.
    """
    by_tab = [cell.strip() for cell in rest.split("\t")[1:]]
    if len(by_tab) == len(columns) + 1 and not by_tab[-2]:
        del by_tab[-2]
    if len(cells) == len(columns):
        by_tab = cells
    elif len(by_tab) != len(columns) or [cell for cell in by_tab if cell] != cells:
        return {}
    return {column: cell for column, cell in zip(columns, by_tab, strict=True) if cell}


def _read_pipe_row(number: int, line: str, label: str, header: Header, pipes: PipeColumns) -> Row:
    cells = pipe_cells(line)
    if len(cells) != pipes.width:
        raise TopoTextError(number, f"{len(cells)} cells", f"{pipes.width} as in line {header.line}")
    links = []
    for column, at in zip(header.columns, pipes.links, strict=True):
        if not LINK_TOKEN.fullmatch(cells[at]):
            seen = quote(cells[at]) if cells[at] else "an empty cell"
            raise TopoTextError(number, seen, f"a link token in column {column}")
        links.append(cells[at])
    affinity = {
        column: cells[at]
        for column, at in zip(header.affinity, pipes.affinity, strict=True)
        if cells[at] not in ("", "-")
    }
    return Row(number, label, tuple(links), tuple(affinity.values()), affinity)
