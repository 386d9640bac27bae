"""The whole path on the GPU of this machine, down to CUDA in a container: run by hand with `make device-test`.

Real here: controller, plugin, exporter and MPS supervisor as processes, NVML, containerd and runc, the CDI that
containerd applies, CUDA. Stand-ins: the API server, kube-scheduler and kubelet of `dracaena demo`. Nothing of the GPU's
settings is changed: the supervisor's compute modes are those of a file.

It needs root, a GPU that nobody uses, a C compiler, and containerd, ctr and runc on the PATH. DRACAENA_TEST_HOOK_TOOL
names an nvidia-cdi-hook; without it containers get the driver without hooks only. DRACAENA_TEST_LOGS=FOLDER keeps what
the programs logged.
"""

# ruff: noqa: T201 - what it prints is what it is run for

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from device.containers import Container, Runtime, build_probe, is_root, missing_programs, offer_specs, withdraw_specs
from dracaena.api.names import DEFAULT_DRIVER_NAME, uuids_annotation
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.cluster import DemoCluster, DemoNode, short_folder
from dracaena.demo.kubelet import NodeFolders
from dracaena.demo.programs import ProgramProcess
from dracaena.demo.scenario import ManifestFile, apply, load_manifests
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from support.gpu_lists import flag
from support.mps_mounts import unmount_all

NODE = "this-node"
PATIENCE_S = 60.0
LOGS = os.environ.get("DRACAENA_TEST_LOGS", "")
HOOK_TOOL = os.environ.get("DRACAENA_TEST_HOOK_TOOL", "")
HOOKS = pytest.mark.parametrize(
    "hooks",
    ["none", pytest.param(HOOK_TOOL, marks=pytest.mark.skipif(not HOOK_TOOL, reason="no DRACAENA_TEST_HOOK_TOOL"))],
    ids=["without hooks", "with hooks"],
)
SCRAPES = 60
PAUSE_S = 0.2
"""The endpoint rests after each answer for some times what it took: a flood of scrapes would measure that."""
GIB = 1024
"""In MiB, as the probe and nvidia-smi count."""

pytestmark = [
    pytest.mark.skipif(bool(missing_programs()), reason=f"not on the PATH: {', '.join(missing_programs())}"),
    pytest.mark.skipif(not is_root(), reason="containers need root"),
]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with tempfile.TemporaryDirectory(prefix="c") as name:
        folder = Path(name)
        runtime = Runtime(folder, build_probe(folder))
        runtime.start()
        yield runtime
        runtime.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[DemoCluster]:
    with short_folder() as root, DemoCluster([DemoNode(NODE, machine="")], root=root) as running:
        classes = [
            ManifestFile(each.file, tuple(doc for doc in each.documents if doc["kind"] == "DeviceClass"))
            for each in load_manifests()
        ]
        apply(running.client, classes)
        yield running
        if LOGS:
            shutil.copytree(running.root / "logs", LOGS, dirs_exist_ok=True)


@pytest.fixture
def folders(cluster: DemoCluster) -> NodeFolders:
    return cluster.folders[NODE]


@pytest.fixture(scope="module")
def uuid() -> str:
    return smi("uuid")


def smi(field: str) -> str:
    """One field of the first GPU, as nvidia-smi says it."""
    asked = ["nvidia-smi", "-i", "0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def restart_plugin(cluster: DemoCluster, *more: str) -> None:
    """Run the plugin with further settings."""
    folders = cluster.folders[NODE]
    cluster.plugins[NODE].stop()
    arguments = (
        "kubelet-plugin", "--kubeconfig", str(cluster.kubeconfig), "--http-address", "127.0.0.1:0", "--node-name", NODE,
        "--kubelet-root", str(folders.kubelet_root), "--cdi-root", str(folders.cdi_root), *more,
    )  # fmt: skip
    plugin = ProgramProcess(f"plugin of {NODE}", arguments, cluster.root / "logs" / f"plugin-{NODE}.log")
    plugin.start()
    cluster.plugins[NODE] = plugin


def until(what: str, holds: Any) -> Any:
    """Wait until `holds` returns something true, and return that."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < until_s, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.1)
    return found


@contextmanager
def pod(cluster: DemoCluster, name: str, device_class: str = DEFAULT_DRIVER_NAME, **request: Any) -> Iterator[Pod]:
    """A pod that runs with a claim of its own; freed at the end of the block."""
    sharing = request.pop("sharing", None)
    asked = {"name": "gpu", "exactly": {"deviceClassName": device_class, **request}}
    devices: dict[str, Any] = {"requests": [asked]}
    if sharing is not None:
        config = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
        devices["config"] = [{"opaque": {"driver": DEFAULT_DRIVER_NAME, "parameters": config}}]
    cluster.client.create(
        ResourceClaim, {"metadata": {"name": name}, "spec": {"devices": devices}}, namespace="default"
    )
    spec = {
        "restartPolicy": "Never",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    cluster.client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace="default")
    began_s = time.monotonic()
    try:
        cluster.wait(f"pod {name} to run", lambda: _waits(cluster, name), PATIENCE_S)
        print(f"\npod {name} runs {time.monotonic() - began_s:.2f} s after it was created")
        yield cluster.client.get(Pod, name, namespace="default")
    finally:
        cluster.client.delete(Pod, name, namespace="default")
        cluster.client.delete(ResourceClaim, name, namespace="default")
        until(f"claim {name} to go", lambda: name not in _names(cluster))


def _waits(cluster: DemoCluster, name: str) -> str | None:
    seen = cluster.client.get(Pod, name, namespace="default")
    uuids = seen.metadata.annotations.get(uuids_annotation(DEFAULT_DRIVER_NAME))
    return None if seen.status.phase == "Running" and uuids else f"{seen.status.phase}, {uuids}"


def _names(cluster: DemoCluster) -> set[str]:
    return {claim.metadata.name for claim in cluster.client.list(ResourceClaim).items}


def specs_of(cluster: DemoCluster, pod_name: str) -> list[str]:
    """The CDI names of a pod's devices, offered to ctr."""
    uid = cluster.client.get(ResourceClaim, pod_name, namespace="default").metadata.uid
    return [name for name in offer_specs(cluster.folders[NODE].cdi_root) if uid in name]


def cgroup_of(pod: Pod) -> str:
    return f"/kubepods/besteffort/pod{pod.metadata.uid}"


def answer_of(container: Container) -> dict[str, Any]:
    """The probe's line; a container that failed says why."""
    answer = container.first_line()
    assert "error" not in answer, (answer, container.end())
    return answer


@HOOKS
def test_cuda_in_a_container_has_the_gpu_that_its_pod_was_given(
    cluster: DemoCluster, folders: NodeFolders, runtime: Runtime, uuid: str, hooks: str
) -> None:
    restart_plugin(cluster, f"--hook-tool={hooks}")
    with pod(cluster, f"whole-{'hooks' if hooks != 'none' else 'plain'}") as given:
        (annotation,) = {given.metadata.annotations[uuids_annotation(DEFAULT_DRIVER_NAME)]}
        assert uuid in annotation
        devices = specs_of(cluster, given.metadata.name)
        assert devices
        began_s = time.monotonic()
        container = runtime.run(devices, [str(GIB)], cgroup=cgroup_of(given))
        answer = answer_of(container)
        print(f"in the container after {time.monotonic() - began_s:.2f} s: {answer}")
        assert [f"GPU-{each['uuid']}" for each in answer["devices"]] == [uuid]
        assert (answer["allocated_mib"], answer["last_byte"]) == (GIB, 165)
        assert container.end().status == 0
        entries = json.loads(folders.podlist.read_bytes())
        assert [(entry["name"], entry["gpu_list"]) for entry in entries] == [(given.metadata.name, [uuid])]
        withdraw_specs(folders.cdi_root)
    until("the CDI spec to go", lambda: not list(folders.cdi_root.glob("*.json")))


def test_a_container_without_a_claim_has_no_gpu(runtime: Runtime) -> None:
    ended = runtime.run([]).end()
    assert (ended.status, ended.answer["call"]) == (1, "dlopen")


def test_the_exporter_says_what_nvidia_smi_says_and_whose_it_is(
    cluster: DemoCluster, folders: NodeFolders, runtime: Runtime, uuid: str
) -> None:
    restart_plugin(cluster, f"--hook-tool={HOOK_TOOL or 'none'}")
    with exporter(cluster, folders) as port, pod(cluster, "trains") as given:
        idle = scrape(port)
        assert one(idle, "DCGM_FI_DEV_FB_USED", UUID=uuid)[0] < GIB
        container = runtime.run(specs_of(cluster, "trains"), [str(4 * GIB), "30", "spin"], cgroup=cgroup_of(given))
        answer_of(container)
        time.sleep(4)  # the driver's utilization is of the last second, SM use by process of its own samples
        used = scrape(port)
        memory, labels = one(used, "DCGM_FI_DEV_FB_USED", UUID=uuid)
        print(f"memory: {memory} MiB, nvidia-smi {smi('memory.used')} MiB, labels {labels}")
        assert abs(memory - float(smi("memory.used"))) < 64
        assert (labels["pod"], labels["namespace"], labels["container"]) == ("trains", "default", "main")
        for name, field, near in (
            ("DCGM_FI_DEV_GPU_TEMP", "temperature.gpu", 5),
            ("DCGM_FI_DEV_MEMORY_TEMP", "temperature.memory", 5),
            ("DCGM_FI_DEV_POWER_USAGE", "power.draw", 150),
            ("DCGM_FI_DEV_SM_CLOCK", "clocks.sm", 300),
            ("DCGM_FI_DEV_MEM_CLOCK", "clocks.mem", 50),
            ("DCGM_FI_DEV_GPU_UTIL", "utilization.gpu", 30),
        ):
            value, told = one(used, name, UUID=uuid)[0], float(smi(field))
            print(f"{name}: {value}, nvidia-smi {told}")
            assert abs(value - told) <= near, name
        own, labels = one(used, "dracaena_gpu_container_memory_used_bytes")
        print(f"of the container: {own / 2**20:.0f} MiB {labels}")
        assert own >= 4 * GIB << 20
        assert labels["pod"] == "trains"
        busy, _ = one(used, "dracaena_gpu_container_sm_ratio")
        print(f"SM use of the container: {busy}")
        assert busy > 0.2
        measure(port, cluster)
        print("\n".join(sorted({sample.name for sample in used})))
        assert container.end().status == 0
        withdraw_specs(folders.cdi_root)


def test_two_shares_compute_side_by_side_behind_the_drivers_own_mps(
    cluster: DemoCluster, folders: NodeFolders, runtime: Runtime, uuid: str
) -> None:
    with supervisor(uuid) as places:
        restart_plugin(cluster, f"--hook-tool={HOOK_TOOL or 'none'}", flag("shared"), f"--mps-root={places.root}")
        asked: dict[str, Any] = {
            "device_class": f"share.{DEFAULT_DRIVER_NAME}",
            "capacity": {"requests": {"memory": "20Gi", "cores": "25"}},
            "sharing": {"strategy": "MPS"},
        }
        with pod(cluster, "left", **asked) as left, pod(cluster, "right", **asked) as right:
            names = {each.metadata.name: specs_of(cluster, each.metadata.name) for each in (left, right)}
            containers = [
                runtime.run(names[each.metadata.name], [str(4 * GIB), "6", "spin"], cgroup=cgroup_of(each))
                for each in (left, right)
            ]
            answers = [answer_of(container) for container in containers]
            for answer in answers:
                (device,) = answer["devices"]
                print(f"a share: {device}")
                assert f"GPU-{device['uuid']}" == uuid
                assert device["multiprocessors"] <= 36  # a quarter of 132, which MPS rounds to pairs
                assert device["free_mib"] <= 20 * GIB  # MPS leaves the total as it is
            too_much = runtime.run(names["left"], [str(21 * GIB)], cgroup=cgroup_of(left)).end()
            print(f"21 GiB in a share of 20: {too_much.answer}")
            assert (too_much.status, too_much.answer["error"]) == (1, "CUDA_ERROR_OUT_OF_MEMORY")
            other_user = runtime.run(names["right"], [str(GIB)], cgroup=cgroup_of(right), user="1234").end()
            print(f"as another user: {other_user.answer}")
            assert other_user.status == 0
            print("\n".join(f"{path}: {path.read_text()}" for path in sorted(Path(places.root).glob("status/*.json"))))
            assert [container.end().status for container in containers] == [0, 0]
            withdraw_specs(folders.cdi_root)
        until("MPS to end with the last share", lambda: not ProcProcessTable(places.pipes).find())
    print("\n".join(_log_lines(places)))


def _log_lines(places: MpsPlaces) -> list[str]:
    return [line for path in sorted(Path(places.logs).rglob("*.log")) for line in path.read_text().splitlines()[-5:]]


@contextmanager
def supervisor(uuid: str) -> Iterator[MpsPlaces]:
    """`dracaena mps` on the real driver, with compute modes that a file holds instead of the GPU."""
    with tempfile.TemporaryDirectory(prefix="m") as root, tempfile.TemporaryDirectory() as beside:
        places, modes, log = MpsPlaces(root), Path(beside) / "modes.json", Path(beside) / "log"
        modes.write_text(json.dumps({uuid: "DEFAULT"}))
        command = [sys.executable, "-P", "-m", "support.mps_program", root, "/", str(modes)]
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            assert process.stdout is not None
            print(f"supervisor: {process.stdout.readline()}")
            yield places
            assert json.loads(modes.read_text()) == {uuid: "DEFAULT"}, "the mode is put back with the last share"
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
            for found in ProcProcessTable(places.pipes).find():
                ProcProcessTable(places.pipes).kill(found)
            unmount_all(places)
            print(log.read_text())


@contextmanager
def exporter(cluster: DemoCluster, folders: NodeFolders) -> Iterator[int]:
    arguments = ("--node-name", NODE, "--kubelet-root", str(folders.kubelet_root), "--http-address", "127.0.0.1:0")
    program = ProgramProcess("exporter", ("exporter", *arguments), cluster.root / "logs" / "exporter.log")
    program.start()
    try:
        found = until("the exporter's port", lambda: re.search(r'"port": ?(\d+)', program.log_path.read_text()))
        yield int(found[1])
    finally:
        program.stop()
        print(program.log_path.read_text())


def scrape(port: int) -> list[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def one(samples: Sequence[Any], name: str, **labels: str) -> tuple[float, Mapping[str, str]]:
    """The only series of this name with these labels."""
    found = [each for each in samples if each.name == name and labels.items() <= each.labels.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0].value, found[0].labels


def measure(port: int, cluster: DemoCluster) -> None:
    """Print what a scrape costs."""
    (pid,) = subprocess.run(
        ["pgrep", "-f", "cli.main exporter --node-name"], capture_output=True, text=True, check=True
    ).stdout.split()[-1:]
    before, times = cpu_s(pid), []
    for _ in range(SCRAPES):
        time.sleep(PAUSE_S)
        began_s = time.monotonic()
        scrape(port)
        times.append(1000 * (time.monotonic() - began_s))
    times.sort()
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    print(
        f"{SCRAPES} scrapes of one GPU: p50 {times[SCRAPES // 2]:.1f} ms, longest {times[-1]:.1f} ms; "
        f"CPU {1000 * (cpu_s(pid) - before) / SCRAPES:.2f} ms each; resident {int(resident[1]) / 1024:.0f} MiB"
    )


def cpu_s(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
