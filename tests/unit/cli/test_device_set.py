from __future__ import annotations

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.names import gpu_device_name
from dracaena.cli.device_set import describe_set, read_devices
from dracaena.cli.main import main
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine

DGX_1V = read_machine("dgx-1v")


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = main(["topology", "show", "--machine", "dgx-1v", *options])
    return (code, *capsys.readouterr())


@pytest.mark.parametrize(
    "text",
    ["3,0", " 0 , 3", "GPU0,gpu3", f"{DGX_1V.gpus[0].uuid},3", f"{gpu_device_name(DGX_1V.gpus[3].uuid)},0"],
)
def test_gpus_are_named_by_number_uuid_or_device_name(text: str) -> None:
    assert read_devices(text, DGX_1V, "--devices") == (0, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,8", "--devices: '8' is not a GPU of dgx-1v, expected 0, 1, 2, 3, 4, 5, 6, 7"),
        ("", "--devices: '' is not a GPU of dgx-1v, expected 0, 1, 2, 3, 4, 5, 6, 7"),
        ("0,GPU0", "--devices: 'GPU0' is named twice"),
    ],
)
def test_a_gpu_that_is_not_there_or_named_twice_is_an_error(text: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        read_devices(text, DGX_1V, "--devices")
    assert str(error.value) == said


def test_the_set_is_marked_in_the_tree_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = printed(capsys, "--devices", "0,1")
    tree = out.split("\n\n")[0].splitlines()
    assert [line.strip("│├└─ ").split()[0] for line in tree if line.endswith("[chosen]")] == ["GPU0", "GPU1"]


def test_a_worse_set_says_in_what_it_is_worse() -> None:
    lines = list(describe_set(DGX_1V, (0, 1)))
    assert lines[1].split() == ["links", "1", "pair", "NV1", "1", "pair", "NV2"]
    assert lines[2].split() == ["bandwidth", "25", "GB/s", "50", "GB/s"]
    assert lines[-1] == "Worse than the best set in: bandwidth."


def test_the_best_set_says_that_none_is_better() -> None:
    assert list(describe_set(DGX_1V, (2, 3)))[-1] == "No other set of this size is better."


def test_devices_go_with_the_tree_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, "--devices", "0,1", "-o", "matrix")
    assert (code, out) == (2, "")
    assert err == "dracaena: --devices marks GPUs in the tree: it cannot be combined with -o matrix\n"
