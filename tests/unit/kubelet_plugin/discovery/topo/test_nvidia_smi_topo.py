from __future__ import annotations

import string
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.discovery.topo.layouts import TopoTextError
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import (
    decode_text,
    machine_from_matrix,
    parse_topo_matrix,
)
from dracaena.kubelet_plugin.discovery.topo.table import read_table, split_lines

HEADER = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity"
ROW_0 = "GPU0\t X \tPIX\tNODE\t0-7\t0"
ROW_1 = "GPU1\tPIX\t X \tSYS\t0-7\t0"
ROW_NIC = "NIC0\tNODE\tSYS\t X "
WHOLE = [HEADER, ROW_0, ROW_1, ROW_NIC]


def text_of(*lines: str) -> str:
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("lines", "line", "seen", "expected"),
    [
        ([], 1, "an empty text", "nvidia-smi topo -m"),
        (["  ", ""], 1, "an empty text", "nvidia-smi topo -m"),
        (["GPU 0: NVIDIA H100"], 2, "no GPU matrix", "nvidia-smi topo -m"),
        (["\x00\x01GPU0"], 1, "NUL", "nvidia-smi topo -m"),
        ([ROW_0, ROW_1], 1, "row GPU0 without a header", "nvidia-smi topo -m"),
        (["\tGPU0\tGPU1", " GPU0\tX\tOK", " GPU1\tOK\tX"], 2, "peer-to-peer", "nvidia-smi topo -m"),
        ([HEADER, ROW_0], 3, "the text ends", "row of GPU1"),
        ([HEADER, ROW_0, "Legend:"], 3, "'Legend:'", "row of GPU1"),
        ([HEADER, ROW_1], 3, "the text ends", "row of GPU0"),
        ([HEADER, ROW_0, "GPU1\tPIX\t X "], 3, "the line ends", "column NIC0"),
        ([HEADER, ROW_0, "GPU1"], 3, "'GPU1'", "row of GPU1"),
        ([HEADER, "GPU0\t X \tPIXIE\tNODE", ROW_1], 2, "'PIXIE'", "column NIC0"),
        ([HEADER, "GPU0\t X \tpix\tNODE", ROW_1], 2, "'pix'", "column GPU1"),
        ([HEADER, "GPU0\t X \tNV1x\tNODE", ROW_1], 2, "'NV1x'", "column NIC0"),
        ([HEADER, "GPU0\t X \t?\tNODE", ROW_1], 2, "'?'", "column GPU1"),
        ([HEADER, "GPU0\t X \tPIX\tNODES", ROW_1], 2, "'NODES'", "column NIC0"),
        ([HEADER, "GPU0\t X \tPIX\tNV2", ROW_1], 2, "'NV2'", "a PCIe level"),
        ([HEADER, "GPU0\t X \tPIX\tX", ROW_1], 2, "'X'", "a PCIe level"),
        ([HEADER, "GPU0\t X \tNV0\tSYS", "GPU1\tNV0\tX\tSYS"], 2, "'NV0'", "1 to 61"),
        ([HEADER, "GPU0\t X \tNV62\tSYS", "GPU1\tNV62\tX\tSYS"], 2, "'NV62'", "1 to 61"),
        ([HEADER, "GPU0\t X \tPIX\tNODE\tSYS", ROW_1], 2, "'SYS' after the last column", "3 links"),
        ([HEADER, "GPU0\tPIX\t X \tNODE", ROW_1], 2, "'PIX' from GPU0 to GPU0", "'X'"),
        ([HEADER, "GPU0\t X \t X \tNODE", ROW_1], 2, "'X' from GPU0 to GPU1", "a link"),
        ([HEADER, ROW_0, "GPU1\tPXB\t X \tSYS"], 3, "PXB from GPU1 to GPU0", "PIX as in line 2"),
        ([HEADER, ROW_0, ROW_1, ROW_1], 4, "a second row of GPU1", "line 3"),
        ([HEADER, ROW_0, ROW_1, "GPU2\tSYS\tSYS\tSYS"], 4, "a row of GPU2", "line 1"),
        (["\tGPU0\tGPU0", "GPU0\tX\tX"], 1, "column GPU0 appears twice", "once"),
        (["\tGPU0\tNIC0\tGPU1", "GPU0\tX\tSYS\tPIX"], 1, "'GPU1' after NIC0", "GPUs before NICs"),
        ([HEADER, ROW_0, ROW_1, "NIC0\tNODE\tNODE\tX"], 4, "NODE from NIC0 to GPU1", "SYS as in line 3"),
        ([HEADER, ROW_0, ROW_1, "NIC0\tNODE\tSYS\tPIX"], 4, "'PIX' from NIC0 to itself", "'X'"),
        ([HEADER, ROW_0, ROW_1, "NIC0\tNODE"], 4, "the line ends", "column GPU1"),
        ([*WHOLE, "", "NIC0: a", "NIC0: b"], 7, "NIC0 is 'b'", "a as in a line before"),
        (["| | GPU0 | GPU1 |", "|-|-|-|", "| GPU0 | X | PIX |", "| GPU1 | PIX |"], 4, "2 cells", "3 as in line 1"),
        (["| | GPU0 | GPU1 |", "|-|-|-|", "| GPU0 | X | |", "| GPU1 | PIX | X |"], 3, "an empty cell", "column GPU1"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_line_and_reason(
    lines: list[str], line: int, seen: str, expected: str
) -> None:
    with pytest.raises(TopoTextError) as caught:
        parse_topo_matrix(text_of(*lines))
    error = caught.value
    assert (error.line, seen in error.seen, expected in error.expected) == (line, True, True), str(error)


def test_every_cut_of_a_matrix_is_refused_or_complete() -> None:
    """Cut after any character: it is refused unless all that the links need is there."""
    text = text_of(*WHOLE)
    whole = parse_topo_matrix(text)
    links_end = {text.index(ROW_1) + len("GPU1\tPIX\t X \tSYS"), text.index(ROW_NIC) + len(ROW_NIC) - 1}
    for cut in range(len(text)):
        try:
            matrix = parse_topo_matrix(text[:cut])
        except TopoTextError:
            continue
        assert cut >= min(links_end)
        assert (matrix.matrix, matrix.gpu_nic) == (whole.matrix, whole.gpu_nic)


def test_prose_around_the_matrix_is_ignored() -> None:
    prose = "GPU0 and GPU1 are linked by a switch; X marks nothing."
    assert parse_topo_matrix(text_of(prose, "", *WHOLE, "", prose)).matrix == (("X", "PIX"), ("PIX", "X"))


def test_double_spaced_paste_is_read() -> None:
    assert parse_topo_matrix("\n\n".join(WHOLE)).gpu_nic == (("NODE",), ("SYS",))


def test_gpu_numbers_are_kept_when_a_text_shows_only_some() -> None:
    matrix = parse_topo_matrix("\tGPU4\tGPU6\nGPU4\t X \tPHB\nGPU6\tPHB\t X \n")
    assert matrix.gpus == (4, 6)
    assert [gpu.index for gpu in machine_from_matrix(matrix, "n").gpus] == [4, 6]


def test_the_first_of_two_link_matrices_is_read() -> None:
    other = ["\tGPU0\tGPU1", "GPU0\t X \tSYS", "GPU1\tSYS\t X "]
    assert parse_topo_matrix(text_of(*WHOLE, *other)).matrix[0][1] == "PIX"


def test_cells_whose_column_is_unclear_are_kept_but_not_placed() -> None:
    header = "      GPU0  GPU1  CPU Affinity  NUMA Affinity  GPU NUMA ID"
    text = text_of(header, "GPU0   X    SYS   1   N/A", "GPU1  SYS    X    0-3   1   N/A")
    assert [row.cells for row in read_table(split_lines(text)).gpu_rows] == [("1", "N/A"), ("0-3", "1", "N/A")]
    matrix = parse_topo_matrix(text)
    assert matrix.numa_affinity == (None, "1")
    assert matrix.topology.numa_nodes == (None, 1)


def test_made_up_uuids_depend_on_name_and_number_alone() -> None:
    matrix = parse_topo_matrix(text_of(*WHOLE))
    first, again, other = (machine_from_matrix(matrix, name) for name in ("a", "a", "b"))
    assert first == again
    assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in other.gpus}
    first.check()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_windows_are_read_too(encoding: str) -> None:
    content = "\r\n".join(WHOLE).encode(encoding)
    assert parse_topo_matrix(decode_text(content)).matrix == (("X", "PIX"), ("PIX", "X"))


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(TopoTextError, match="line 2: bytes that are not UTF-8 text"):
        decode_text(b"\tGPU0\n\x80\x81")


FRAGMENTS = st.sampled_from(
    [*WHOLE, "GPU0", "GPU1", "NIC0", "X", "PIX", "SYSSYS", "NV4", "N/A", "0-7", "\t", " ", "\n", "|", "| GPU0 |", "-",
     "CPU Affinity", "NUMA", "GPU NUMA ID", "\x1b[4m", "[0m", "NIC0: mlx5_0", "OK", "#", "٣", "GPU99999999"]
)  # fmt: skip


@settings(derandomize=True)
@given(st.text() | st.lists(FRAGMENTS | st.text(string.printable, max_size=3), max_size=40).map("".join))
@example("|GPU0|\n|GPU0|X|")
@example("GPU0\nGPU0 X")
def test_any_text_is_a_checked_matrix_or_a_clear_error(text: str) -> None:
    message = ""
    try:
        matrix = parse_topo_matrix(text)
        matrix.topology.check()
        assert len(matrix.gpus) == len(matrix.matrix) == matrix.topology.gpu_count > 0
    except TopoTextError as error:
        message = str(error)
        assert 1 <= error.line <= text.count("\n") + text.count("\r") + 1  # noqa: PT017 - either way is right
    assert "\n" not in message


@settings(derandomize=True)
@given(st.binary())
def test_any_bytes_are_text_or_a_clear_error(content: bytes) -> None:
    try:
        parse_topo_matrix(decode_text(content))
    except TopoTextError as error:
        assert error.expected  # noqa: PT017 - either way is right


@pytest.mark.parametrize(
    "fill",
    [
        lambda size: "A" * size,
        lambda size: "[" * size,
        lambda size: " " * size,
        lambda size: "|" * size,
        lambda size: "GPU0" * (size // 4),
        lambda size: "\tGPU0\tGPU1\n" * (size // 11),
        lambda size: "\n" * size,
        lambda size: text_of(HEADER, "GPU0\t" + "X" * size),
        lambda size: text_of("\tGPU0\t" + "mlx5_0" * (size // 6), ROW_0),
        lambda size: text_of("\tGPU0\t" + "a1" * (size // 2), ROW_0),
        lambda size: text_of("\tGPU0\tCPU Affinity", "GPU0\tX\t" + "0," * (size // 2) + "x"),
        lambda size: text_of(*WHOLE) + "NIC0:" * (size // 5),
    ],
)
def test_a_huge_text_is_answered_in_linear_time(fill: Callable[[int], str]) -> None:
    """1 MB of one kind: anything worse than linear would run into the test's time limit."""
    try:
        parse_topo_matrix(fill(2**20))
    except TopoTextError as error:
        assert len(str(error)) < 300  # noqa: PT017 - either way is right


def test_megabytes_around_a_matrix_do_not_hide_it() -> None:
    prose = "GPU0 is linked to GPU1\n" * (2 * 2**20 // 46)
    assert parse_topo_matrix(prose + text_of(*WHOLE) + "\n" + prose).matrix == (("X", "PIX"), ("PIX", "X"))
