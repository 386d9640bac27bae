from __future__ import annotations

import io
import json
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dracaena.api.machine_json import encode_machine
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceSlice
from dracaena.api.resourceslice import decode_pool
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import decode_text, parse_topo_matrix
from support.machines import divided_machine
from support.simulated import Run

FOLDER = Path(__file__).parents[2] / "fixtures" / "topologies"
TRUTH = json.loads((FOLDER.parent / "topologies-truth.json").read_text(encoding="utf-8"))
READABLE = sorted(name for name, truth in TRUTH.items() if "refused_at_line" not in truth)
SOC = FOLDER / "comment_star_old_soc.txt"


def slices_in(text: str) -> list[ResourceSlice]:
    import msgspec

    return [msgspec.convert(document, ResourceSlice) for document in yaml.load_all(text, yaml.CSafeLoader)]


@pytest.mark.parametrize("name", READABLE)
def test_json_of_an_import_is_what_was_printed(run: Run, name: str) -> None:
    result = run("topology", "import", FOLDER / name, "-o", "json")
    document = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert document["matrix"] == TRUTH[name]["matrix"]
    assert document["gpu_nic"] == TRUTH[name]["gpu_nic"]
    assert document["gpus"] == [f"GPU{gpu}" for gpu in range(TRUTH[name]["gpus"])]
    assert document["numa"] == TRUTH[name].get("numa_nodes", document["numa"])


@pytest.mark.parametrize("name", READABLE)
def test_matrix_of_an_import_reads_the_same_again(run: Run, name: str) -> None:
    printed = parse_topo_matrix(run("topology", "import", FOLDER / name, "-o", "matrix").out)
    original = parse_topo_matrix(decode_text((FOLDER / name).read_bytes()))
    assert (printed.matrix, printed.gpu_nic) == (original.matrix, original.gpu_nic)
    assert printed.topology.numa_nodes == original.topology.numa_nodes


def test_old_tokens_stay_as_printed_in_matrix_and_json(run: Run) -> None:
    assert "SOC" in run("topology", "import", SOC, "-o", "matrix").out
    assert json.loads(run("topology", "import", SOC, "-o", "json").out)["matrix"][2] == ["SOC", "SOC", "X"]
    assert "SYS:3" in run("topology", "import", SOC).out


def test_tree_is_the_default_form(run: Run) -> None:
    result = run("topology", "import", FOLDER / "ansi_underlined_header.txt")
    assert result.out.splitlines()[:3] == ["ROOT:3", "└─ SYS:3", "   ├─ PIX:2"]


def test_standard_input_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(SOC.read_bytes())))
    assert run("topology", "import", "-").out == run("topology", "import", SOC).out


def test_resourceslices_of_an_import_are_what_a_node_would_publish(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text("\tGPU3\tGPU5\nGPU3\t X \tNV4\nGPU5\tNV4\t X \n", encoding="utf-8")
    result = run("topology", "import", text, "-o", "resourceslices", "--node", "worker-1")
    (published,) = slices_in(result.out)
    assert (result.code, published.spec.node_name, published.spec.pool.name) == (0, "worker-1", "worker-1")
    assert [device.attributes["index"].int_value for device in published.spec.devices] == [3, 5]
    assert {taint.key for device in published.spec.devices for taint in device.taints} == {
        "gpu.dracaena.dev/controller-allocated"
    }
    assert yaml.safe_load(result.out)["kind"] == "ResourceSlice"
    assert run("topology", "import", text, "-o", "resourceslices", "--node", "worker-1").out == result.out


def test_another_driver_name_is_followed(run: Run) -> None:
    out = run(
        "topology", "show", "--machine", "l40s-x4", "-o", "resourceslices", "--driver-name", "gpu.example.com"
    ).out
    (published,) = slices_in(out)
    assert published.spec.driver == "gpu.example.com"
    assert published.spec.devices[0].taints[0].key == "gpu.example.com/controller-allocated"


@pytest.mark.parametrize("name", machine_names())
def test_recorded_machines_show_in_every_form(run: Run, name: str) -> None:
    machine = read_machine(name)
    assert run("topology", "show", "--machine", name).out.startswith(f"ROOT:{len(machine.gpus)}\n")
    assert run("topology", "show", "--machine", name, "-o", "matrix").out.count("\n") == len(machine.gpus) + 1
    document = json.loads(run("topology", "show", "--machine", name, "-o", "json").out)
    assert document["matrix"] == [list(row) for row in machine.topology.matrix()]
    (published,) = slices_in(run("topology", "show", "--machine", name, "-o", "resourceslices").out)
    decoded = decode_pool(published.spec.devices)
    # Those in MIG mode are not published as whole GPUs.
    for a, b in combinations([gpu.ordinal for gpu in decoded.gpus], 2):
        assert decoded.topology.link(a, b) == machine.topology.link(a, b)
    assert published.spec.node_name == name


def test_a_gpu_in_mig_mode_is_shown_as_its_parts_only(run: Run, tmp_path: Path) -> None:
    machine = divided_machine()
    path = tmp_path / "divided.json"
    path.write_bytes(encode_machine(machine))
    (published,) = slices_in(run("topology", "show", "--machine", path, "-o", "resourceslices").out)
    assert [device.name for device in published.spec.devices] == [
        gpu_device_name(machine.gpus[0].uuid),
        *(mig.device_name for mig in machine.mig_devices),
    ]


def test_gpus_that_a_node_shares_are_published_as_shared_ones(run: Run) -> None:
    arguments = ("topology", "show", "--machine", "hgx-h100", "-o", "resourceslices")
    published = {
        setting: [device.allow_multiple_allocations for device in slices_in(run(*arguments, *more).out)[0].spec.devices]
        for setting, more in (("none", ()), ("all", ("--sharing", "all")), ("some", ("--sharing", "0,2")))
    }
    assert published == {"none": [False] * 8, "all": [True] * 8, "some": [True, False, True, *[False] * 5]}


def test_a_board_with_partitions_is_drawn_and_its_sets_are_reported(run: Run) -> None:
    shown = run("topology", "show", "--machine", "hgx-h100", "--partitions", "--devices", "0,1")
    assert "whole partitions of 4: GPU0-3; GPU4-7" in shown.out
    assert "1 pair ?, no whole partition  1 pair NV18, a whole partition" in shown.out
    (slice_,) = slices_in(run("topology", "show", "--machine", "hgx-h100", "--partitions", "-o", "resourceslices").out)
    assert len(decode_pool(slice_.spec.devices).partitions) == 15


def test_a_machine_that_is_no_such_board_has_no_partitions(run: Run) -> None:
    done = run("topology", "show", "--machine", "dgx-2", "--partitions")
    assert (done.code, done.err) == (
        2,
        "dracaena: --partitions: only boards of 8 GPUs have them, dgx-2 has 16\n",
    )


def test_sharing_that_names_no_gpu_is_refused_by_its_words(run: Run) -> None:
    arguments = ("topology", "show", "--machine", "hgx-h100", "-o", "resourceslices", "--sharing", "0,17")
    assert run(*arguments).err.startswith(
        "dracaena: --sharing: '17' is not an index, UUID, PCI address or product of a GPU"
    )


def test_sharing_is_for_what_a_node_publishes(run: Run) -> None:
    result = run("topology", "show", "--machine", "hgx-h100", "--sharing", "all")
    assert result.err == (
        "dracaena: --sharing says what a node publishes: it can only be combined with -o resourceslices, "
        "not with -o tree\n"
    )


def test_machines_are_listed(run: Run) -> None:
    lines = run("topology", "machines").out.splitlines()
    assert lines[0].split() == ["NAME", "GPUS", "NUMA", "NODES", "LINKS", "PRODUCT"]
    assert [line.split()[0] for line in lines[1:]] == list(machine_names())


@pytest.mark.parametrize("name", sorted(TRUTH.keys() - set(READABLE)))
def test_a_broken_matrix_is_one_line_with_file_and_line(run: Run, name: str) -> None:
    result = run("topology", "import", FOLDER / name)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dracaena: {FOLDER / name}: line {TRUTH[name]['refused_at_line']}: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topology", "import", "/no/such/file"), "/no/such/file: cannot be read: No such file or directory"),
        (("topology", "import", ""), "'': is not a path, expected a file with the output"),
        (("topology", "import", "."), ".: cannot be read: Is a directory"),
        (("topology", "import", "a\0b"), "cannot be read: embedded null"),
        (
            ("topology", "import", SOC, "-o", "resourceslices", "--node", "No Node"),
            "--node: 'No Node' is not the name of a Node: a DNS name",
        ),
        (("topology", "show", "--machine", "dgx-9"), "no recorded machine is called 'dgx-9'"),
        (("topology", "show", "--machine", "./no.json"), "./no.json: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, arguments: tuple[object, ...], message: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("dracaena: ")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_this_machine_is_shown_in_place_of_a_recorded_one(run: Run, tmp_path: Path) -> None:
    result = run("topology", "show", "--nvml", "--driver-root", tmp_path)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(
        "dracaena: the NVIDIA driver of this machine cannot be used: no libnvidia-ml.so.1 below"
    )
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--machine", "dgx-2", "--nvml")])
def test_show_needs_exactly_one_source(run: Run, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("topology", "show", *words)
    assert ended.value.code == 2
