"""The whole exporter over HTTP, its text read by prometheus_client's parser."""

from __future__ import annotations

import json
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from dracaena.api.device_share import DeviceShare
from dracaena.api.errors import BadInputError
from dracaena.exporter.series.fields import FIELDS, LEFT_OUT
from dracaena.host.adapters.gpu_driver.use import request_release, wait_until_let_go, withdraw
from dracaena.host.paths import plugin_paths
from dracaena.process.clock import SystemClock
from support.clock import FastClock, SteppedClock
from support.dcgm_counters import DCGM_COUNTERS
from support.exporting_node import HOST, Scrape, entry, exporting_node, gpu_uuid, mig_of, mig_uuid, pod_uid
from support.exporting_nvml import FakeProcess
from support.fake_pci import FakePciBus
from support.kube import wait_for
from support.sockets import short_folder

LABELS = {"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION"}
"""Of a GPU's series there, in its release 4.5.3."""
OWNER = {"container", "namespace", "pod"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:  # the plugin's folder must be one that sockets fit into
        yield made


def test_names_types_and_labels_are_those_of_dcgm_exporter(folder: Path) -> None:
    with exporting_node(folder) as node:
        node.list(entry("train", gpu_uuid(0)))
        for activity in node.nvml.activity:
            activity.gpm = True
        node.scrape()
        scrape = node.scrape()
    served = {name: family for name, family in scrape.families.items() if name.startswith("DCGM_")}
    assert {name: served[name].type for name in served} == {
        name: counter.type for name, counter in DCGM_COUNTERS.items() if name not in LEFT_OUT
    }
    assert LEFT_OUT.keys() <= DCGM_COUNTERS.keys()
    for name in served:
        assert f"# TYPE {name} {DCGM_COUNTERS[name].type}\n{name}{{" in scrape.text  # no `_total` behind counters
        ((mine, _), (idle, _)) = scrape.samples[name]
        assert set(mine) == LABELS | OWNER, name
        assert set(idle) == LABELS, name
    assert served["DCGM_FI_DEV_SM_CLOCK"].samples[0].labels == {
        "gpu": "0",
        "UUID": gpu_uuid(0),
        "pci_bus_id": "00000000:18:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H100 80GB HBM3",
        "hostname": HOST,
        "DCGM_FI_DRIVER_VERSION": "580.65.06",
        "container": "main",
        "namespace": "team",
        "pod": "train",
    }


VALUES = {
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_MEM_CLOCK": 1593,
    "DCGM_FI_DEV_MEMORY_TEMP": 55,
    "DCGM_FI_DEV_GPU_TEMP": 41,
    "DCGM_FI_DEV_POWER_USAGE": 71.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
    "DCGM_FI_DEV_GPU_UTIL": 61,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 62,
    "DCGM_FI_DEV_ENC_UTIL": 63,
    "DCGM_FI_DEV_DEC_UTIL": 64,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_FB_FREE": 79_935,
    "DCGM_FI_DEV_FB_USED": 1024,
    "DCGM_FI_DEV_FB_RESERVED": 600,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 7,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 8,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.01,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.42,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.01,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1 << 20,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 1 << 20,
}
"""What the GPU of the next test does, in the units of dcgm-exporter: NVML has mW, bytes, percent and MiB/s for some."""

HELP_OF_UNIT = {
    "none": "",
    "ratio": "Fraction of ",
    **{unit: f"(in {unit})." for unit in ("MHz", "C", "W", "mJ", "%", "MiB")},
}
HELP_OF_UNIT["bytes per second"] = "(in bytes per second)."


def test_every_default_counter_has_the_unit_of_dcgm_exporter(folder: Path) -> None:
    with exporting_node(folder, 1) as node:
        does = node.nvml.activity[0]
        does.gpm, does.tensor_percent, does.memory_used_mib = True, 42.0, 1024
        does.utilization, does.memory_utilization, does.encoder, does.decoder = 61, 62, 63, 64
        does.remapped_uncorrected, does.remapped_corrected = 7, 8
        node.scrape()
        scrape = node.scrape()
    assert list(VALUES) == [name for name in DCGM_COUNTERS if name not in LEFT_OUT]
    assert {name: scrape.value(name) for name in VALUES} == pytest.approx(VALUES)
    for name in VALUES:
        unit = DCGM_COUNTERS[name].unit
        help_text = scrape.families[name].documentation
        assert HELP_OF_UNIT[unit] in help_text, (name, unit, help_text)
        assert unit != "none" or "(in " not in help_text, name


def test_what_the_hardware_lacks_is_left_out_and_asked_once(folder: Path) -> None:
    with exporting_node(folder, 1) as node:
        node.nvml.activity[0].memory_temperature = None
        node.nvml.activity[0].energy_mj = None
        node.scrape()
        asked = node.nvml.calls.count("nvmlDeviceGetTotalEnergyConsumption")
        scrape = node.scrape()
        assert node.nvml.calls.count("nvmlDeviceGetTotalEnergyConsumption") == asked == 1
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in scrape.families
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" not in scrape.text
    assert "DCGM_FI_PROF" not in scrape.text
    assert scrape.value("dracaena_exporter_driver_up") == 1


def test_the_map_is_read_again_when_it_changes(folder: Path) -> None:
    with exporting_node(folder) as node:
        assert node.scrape().owners("DCGM_FI_DEV_GPU_TEMP") == ["-", "-"]
        node.list(entry("a", gpu_uuid(0)))
        assert node.scrape().owners("DCGM_FI_DEV_GPU_TEMP") == ["-", "team/a/main"]
        node.list(entry("b", gpu_uuid(0), gpu_uuid(1)))
        scrape = node.scrape()
        assert scrape.owners("DCGM_FI_DEV_GPU_TEMP") == ["team/b/main", "team/b/main"]
        assert scrape.value("dracaena_gpu_allocation_info", uuid=gpu_uuid(1), pod="b", claim="claim-of-b") == 1
        node.list()
        assert node.scrape().owners("DCGM_FI_DEV_GPU_TEMP") == ["-", "-"]


def test_a_shared_gpu_is_served_once_and_its_shares_by_our_own_names(folder: Path) -> None:
    def share(name: str, memory: str, cores: int) -> tuple[DeviceShare, ...]:
        return (DeviceShare(gpu_uuid(0), f"share-{name}", memory, cores),)

    with exporting_node(folder) as node:
        node.list(
            entry("a", gpu_uuid(0), number=1, shares=share("a", "20Gi", 30)),
            entry("b", gpu_uuid(0), number=2, shares=share("b", "10Gi", 0)),
        )
        node.nvml.activity[0].memory_used_mib = 3000
        node.nvml.activity[0].processes = [FakeProcess(11, 2000, 60), FakeProcess(12, 500, 70), FakeProcess(99, 10)]
        node.nvml.activity[0].mps_clients = [FakeProcess(21, 400, 5)]
        for pid, pod in ((11, 1), (12, 1), (21, 2)):
            node.run(pid, pod_uid(pod))
        scrape = node.scrape()
    used = "DCGM_FI_DEV_FB_USED"
    for name in (used, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"):
        assert scrape.owners(name) == ["-", "-"], "sums and means over all GPUs are right"
    assert scrape.value(used, gpu="0") == 3000
    assert scrape.value("dracaena_gpu_container_memory_used_bytes", pod="a") == 2500 << 20
    assert scrape.value("dracaena_gpu_container_sm_ratio", pod="a") == 1  # 60 and 70 took turns
    assert scrape.value("dracaena_gpu_container_memory_used_bytes", pod="b") == 400 << 20
    assert scrape.value("dracaena_gpu_container_sm_ratio", pod="b") == 0.05
    assert scrape.value("dracaena_gpu_container_processes", pod="a") == 2
    assert scrape.value("dracaena_gpu_other_processes", uuid=gpu_uuid(0)) == 1
    assert scrape.value("dracaena_gpu_share_memory_bytes", pod="a", share_id="share-a") == 20 << 30
    assert scrape.values("dracaena_gpu_share_cores_ratio") == [0.3]


def test_mig_devices_have_their_own_containers(folder: Path) -> None:
    migs = [mig_of(0, 0), mig_of(0, 1, "2g.20gb"), mig_of(0, 2)]
    with exporting_node(folder, 2, migs) as node:
        node.list(
            entry("a", mig_uuid(0), number=1), entry("b", mig_uuid(1), number=2), entry("c", gpu_uuid(1), number=3)
        )
        node.nvml.mig_activity[mig_uuid(0)].memory_used_mib = 70
        node.nvml.mig_activity[mig_uuid(1)].processes = [FakeProcess(5, 33)]
        node.run(5, pod_uid(2))
        scrape = node.scrape()
    used = "DCGM_FI_DEV_FB_USED"
    assert scrape.owners(used, gpu="0", GPU_I_ID="7", GPU_I_PROFILE="1g.10gb") == ["team/a/main"]
    assert scrape.owners(used, gpu="0", GPU_I_ID="8", GPU_I_PROFILE="2g.20gb") == ["team/b/main"]
    assert scrape.owners(used, gpu="0", GPU_I_ID="9") == ["-"]
    assert scrape.owners(used, gpu="0") == ["-", "team/a/main", "team/b/main"], "not of the GPU beside its parts"
    assert scrape.owners("DCGM_FI_DEV_POWER_USAGE", gpu="0") == ["-"], "which only the GPU reports"
    assert scrape.owners(used, gpu="1") == ["team/c/main"]
    assert scrape.value(used, pod="a") == 70
    assert scrape.value("dracaena_gpu_allocation_info", uuid=mig_uuid(1), parent_uuid=gpu_uuid(0), pod="b") == 1
    assert scrape.value("dracaena_gpu_container_memory_used_bytes", pod="b", uuid=mig_uuid(1)) == 33 << 20
    assert scrape.owners("DCGM_FI_DEV_GPU_UTIL") == ["team/c/main"]


def test_a_hung_driver_is_told_in_time_and_its_return_too(folder: Path) -> None:
    with exporting_node(folder, deadline_s=0.2) as node:
        node.list(entry("a", gpu_uuid(0)))
        wait_for(lambda: node.scrape().values("dracaena_exporter_driver_up") == [1], "a reading in time")
        wedge = node.nvml.wedged["nvmlDeviceGetPowerUsage"] = threading.Event()
        try:
            for _ in range(2):
                scrape = Scrape(node.get(timeout_s=10)[0])
                assert scrape.value("dracaena_exporter_driver_up") == 0
                assert "DCGM_" not in scrape.text
                assert scrape.value("dracaena_gpu_allocation_info", pod="a", uuid=gpu_uuid(0)) == 1
        finally:
            del node.nvml.wedged["nvmlDeviceGetPowerUsage"]
            wedge.set()
        wait_for(lambda: node.scrape().values("dracaena_exporter_driver_up") == [1], "the driver is back")


def test_gpus_are_read_at_once_and_served_in_their_order(folder: Path) -> None:
    """No GPU is done before another one is being read."""
    with exporting_node(folder, 4) as node:
        node.scrape()
        symbol = "nvmlDeviceGetPowerUsage"
        wedge = node.nvml.wedged[symbol] = threading.Event()
        scrapes: list[Scrape] = []
        scraping = threading.Thread(target=lambda: scrapes.append(node.scrape()))
        scraping.start()
        try:
            wait_for(lambda: node.nvml.calls.count(symbol) == 8, "all four GPUs are asked")
        finally:
            wedge.set()
            scraping.join()
        assert [labels["gpu"] for labels, _ in scrapes[0].samples["DCGM_FI_DEV_POWER_USAGE"]] == ["0", "1", "2", "3"]


def test_a_gpu_that_is_lost_in_a_scrape_leaves_the_others(folder: Path) -> None:
    with exporting_node(folder, 3) as node:
        node.list(entry("a", gpu_uuid(1)))
        node.scrape()
        node.nvml.refuse("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_GPU_IS_LOST, 1)
        scrape = node.scrape()
        assert [scrape.value("dracaena_exporter_gpu_up", gpu=str(n)) for n in range(3)] == [1, 0, 1]
        assert len(scrape.values("DCGM_FI_DEV_POWER_USAGE")) == 2
        errors = scrape.value(
            "dracaena_exporter_nvml_errors_total", call="nvmlDeviceGetPowerUsage", error="GPU_IS_LOST"
        )
        assert errors == 1
        node.nvml.allow()
        assert len(node.scrape().values("DCGM_FI_DEV_POWER_USAGE")) == 3


def test_a_lost_gpu_stays_told_after_the_driver_was_opened_anew_without_it(folder: Path) -> None:
    """As it is five minutes after a loss: a driver that is opened then has another list."""
    with exporting_node(folder, 3) as node:
        node.scrape()
        node.nvml.lost.add(1)
        for lists in (False, True, True):
            if not lists:
                node.nvml.refuse("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
            scrape = node.scrape()
            assert scrape.value("dracaena_exporter_driver_up") == lists
            node.nvml.allow()
        up = {labels["UUID"]: value for labels, value in scrape.samples["dracaena_exporter_gpu_up"]}
        assert up == {gpu_uuid(0): 1, gpu_uuid(1): 0, gpu_uuid(2): 1}
        assert scrape.value("dracaena_exporter_unnamed_gpus") == 1
        node.nvml.lost.clear()
        assert node.scrape().values("dracaena_exporter_gpu_up") == [1, 1, 1]
        assert node.scrape().value("dracaena_exporter_unnamed_gpus") == 0


def test_a_gpu_that_went_to_a_virtual_machine_is_not_lost(folder: Path) -> None:
    bus = FakePciBus(folder / "sys")
    with exporting_node(folder, 3) as node:
        (address,) = {
            labels["pci_bus_id"]
            for labels, _ in node.scrape().samples["DCGM_FI_DEV_GPU_TEMP"]
            if labels["UUID"] == gpu_uuid(1)
        }
        bus.add(address[4:].lower(), 7, driver="vfio-pci")
        node.nvml.lost.add(1)  # nor does NVML list it, once it is opened anew
        for lists in (False, True, True):
            if not lists:
                node.nvml.refuse("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
            scrape = node.scrape()
            node.nvml.allow()
        up = {labels["UUID"]: value for labels, value in scrape.samples["dracaena_exporter_gpu_up"]}
        assert up == {gpu_uuid(0): 1, gpu_uuid(2): 1}
        bus.rebind(address[4:].lower(), "nvidia")
        assert 0 in node.scrape().values("dracaena_exporter_gpu_up"), "the driver has it, and does not list it"


def test_a_driver_that_is_not_there_is_served_too(folder: Path) -> None:
    with exporting_node(folder) as node:
        node.nvml.refuse("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        scrape = node.scrape()
        assert scrape.value("dracaena_exporter_driver_up") == 0
        assert node.get("/readyz")[0] == "ok\n"
        node.nvml.allow()
        assert node.scrape().value("dracaena_exporter_driver_up") == 1


def test_counters_that_run_back_are_held_and_counted(folder: Path) -> None:
    energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    with exporting_node(folder, 1) as node:
        seen = []
        for value in (100, 200, 150, 210, 5, 7):
            node.nvml.activity[0].energy_mj = value
            scrape = node.scrape()
            seen.append(scrape.value(energy))
    assert seen == [100, 200, 200, 210, 210, 7]
    assert scrape.value("dracaena_exporter_counters_ran_back_total") == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "malformed"),
        (b'[{"name":"a","namespace":"team","conta', "malformed"),
        (b'{"version": 2, "pods": []}', "malformed"),
        (None, "absent"),
    ],
)
def test_a_map_that_cannot_be_read_keeps_the_one_before(folder: Path, content: bytes | None, reason: str) -> None:
    with exporting_node(folder) as node:
        node.list(entry("a", gpu_uuid(0)))
        assert node.scrape().value("dracaena_exporter_podlist_up") == 1
        node.podlist.unlink()
        if content is not None:
            node.podlist.write_bytes(content)
        scrape = node.scrape()
        assert scrape.value("dracaena_exporter_podlist_up") == 0
        assert scrape.value("dracaena_exporter_podlist_errors_total", reason=reason) == 1
        assert scrape.owners("DCGM_FI_DEV_GPU_TEMP") == ["-", "team/a/main"]
        assert bool(scrape.values("dracaena_exporter_podlist_age_seconds")) == (content is not None)
        node.list(entry("b", gpu_uuid(0)))
        assert node.scrape().owners("DCGM_FI_DEV_GPU_TEMP") == ["-", "team/b/main"]


def test_gpus_of_the_map_that_are_not_there_are_counted(folder: Path) -> None:
    with exporting_node(folder) as node:
        node.list(entry("a", gpu_uuid(0), gpu_uuid(8)), entry("b", "9", number=1))
        scrape = node.scrape()
    assert scrape.value("dracaena_exporter_podlist_unknown_gpus") == 2
    assert scrape.owners("dracaena_gpu_allocation_info") == ["team/a/main"]


def test_names_of_any_characters_are_escaped(folder: Path) -> None:
    name = 'a"b\\c\nd<script>alert(1)</script>\u2028'
    with exporting_node(folder) as node:
        node.list(entry(name, gpu_uuid(0), container=name))
        scrape = node.scrape()
    assert scrape.values("dracaena_gpu_allocation_info", pod=name, container=name) == [1]
    assert scrape.values("DCGM_FI_DEV_GPU_TEMP", pod=name)


def test_idle_allocated_gpus_are_told(folder: Path) -> None:
    clock = SteppedClock()
    with exporting_node(folder, clock=clock, idle_after_s=1.0) as node:
        node.list(entry("lazy", gpu_uuid(0), number=1), entry("busy", gpu_uuid(1), number=2))
        node.nvml.activity[1].utilization = 80
        node.scrape()
        clock.gone_by_s = 1.1
        scrape = node.scrape()
    idle = "dracaena_gpu_allocated_idle"
    assert (scrape.value(idle, pod="lazy"), scrape.value(idle, pod="busy")) == (1, 0)
    assert scrape.value(f"{idle}_seconds", pod="lazy") >= 1
    assert scrape.value(f"{idle}_seconds", pod="busy") == 0


def test_the_driver_is_let_go_of_when_somebody_asks(folder: Path) -> None:
    paths = plugin_paths(str(folder / "kubelet"), "gpu.dracaena.dev", "")
    paths.release_request.parent.mkdir(parents=True)
    with exporting_node(folder, clock=FastClock(20.0), deadline_s=20 * 10.0) as node:
        assert node.scrape().value("dracaena_exporter_driver_up") == 1
        assert node.nvml.opened == 1
        request_release(paths.release_request, "update")
        assert wait_until_let_go(paths.gpu_driver_lock, SystemClock(), 10.0)
        assert node.nvml.opened == 0
        assert node.scrape().value("dracaena_exporter_driver_up") == 0
        withdraw(paths.release_request)
        assert node.scrape().value("dracaena_exporter_driver_up") == 1


def test_a_file_chooses_fields_and_unknown_ones_hinder_no_other(folder: Path) -> None:
    chosen = folder / "fields.csv"
    chosen.write_text(
        "# Format\nDCGM_FI_DEV_GPU_TEMP, gauge, How warm, in C.\nDCGM_FI_DEV_NO_SUCH, gauge, x\nbroken\n"
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, ECC\n"
    )
    with exporting_node(folder, 1, collectors=str(chosen)) as node:
        scrape = node.scrape()
    assert [name for name in scrape.families if name.startswith("DCGM_")] == [
        "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ]  # fmt: skip
    assert scrape.families["DCGM_FI_DEV_GPU_TEMP"].documentation == "How warm, in C."
    assert "DCGM_FI_DRIVER_VERSION" not in scrape.text
    assert scrape.value("dracaena_exporter_faulty_fields") == 2


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_of_fields_that_cannot_be_read_is_refused_at_the_start(folder: Path, content: bytes | None) -> None:
    chosen = folder / "fields.csv"
    if content is not None:
        chosen.write_bytes(content)
    with pytest.raises(BadInputError, match="field file"), exporting_node(folder, collectors=str(chosen)):
        pass


def test_basic_auth_protects_metrics_and_not_health(folder: Path) -> None:
    web = folder / "web.yml"
    web.write_text("basic_auth_users: {prometheus: $2b$04$abcdefghijklmnopqrstuuQnBhXvGBl0nmpXhJ8S4XBqlUbh0HTS2}\n")
    with exporting_node(folder, web_config_file=str(web)) as node:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            node.scrape()
        assert node.get("/healthz")[0] == "ok\n"


def test_the_text_has_the_type_that_prometheus_asks_for(folder: Path) -> None:
    with exporting_node(folder, 1) as node:
        assert node.get()[1].startswith("text/plain; version=0.0.4")


def test_samples_of_gpm_are_freed(folder: Path) -> None:
    with exporting_node(folder) as node:
        for activity in node.nvml.activity:
            activity.gpm = True
        for _ in range(3):
            node.scrape()
        assert node.nvml.samples_alive == 2
    assert node.nvml.samples_alive == 0


def test_each_field_is_known_once() -> None:
    assert len({field.name for field in FIELDS}) == len(FIELDS)


def test_people_get_a_tree_and_scripts_the_use_by_pod(folder: Path) -> None:
    with exporting_node(folder) as node:
        node.list(entry("train", gpu_uuid(0)))
        node.scrape()
        text, _ = node.get("/graph")
        assert "└─ team/train/main" in text
        assert "81559 MiB" in text
        document, kind = node.get("/usage")
        assert kind == "application/json"
        assert json.loads(document)["pods"][0]["pod"] == "train"
        assert [device["gpu"] for device in json.loads(document)["unowned"]] == [1]
        node.podlist.unlink()
        assert "unowned" not in json.loads(node.get("/usage")[0]), "nobody knows who has GPU 1 now"
