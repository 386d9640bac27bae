"""What an admin can set for the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.kubelet_plugin.discovery.gpu_list import (
    ALL_WHOLE,
    CC_MODE_TOOL,
    EXISTING,
    FABRIC_PARTITIONS,
    MACHINE,
    ON_DEMAND,
    GpuList,
    GpuRole,
    read_gpus,
    refuse_combinations,
)
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.process.settings import DRIVER_NAME, NODE_NAME, UID, WEB_CONFIG_HELP, Structure, TextForm, option

CONTROLLER = "controller"
KUBE_SCHEDULER = "kube-scheduler"

ALL = "all"
HOST_FILE = TextForm(r"(none|/[^\s:]+)?", "an absolute path, `none`, or nothing")
HOST_FOLDER = TextForm(r"(/[^\s:]*[^\s:/])?", "an absolute path, or nothing")
ADDRESS = TextForm(r"(\S+:[0-9]{1,5})?", "host:port")
FABRIC_MANAGER = TextForm(r"/[^\s:]+|[^\s:/]+:[0-9]{1,5}", "an absolute path, or host:port")
XIDS = TextForm(r"(all|[0-9]{1,6}(,[0-9]{1,6})*)?", "comma-separated XID numbers, `all`, or nothing")
RUNTIME_CLASSES = TextForm(
    r"([a-z0-9][-.a-z0-9]*\*?(,[a-z0-9][-.a-z0-9]*\*?)*)?",
    "comma-separated names of RuntimeClasses, where `*` at the end matches any rest, or nothing",
)


GPUS = Structure(
    read_gpus,
    {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["select", "as"],
            "properties": {
                "select": {"type": ["string", "integer", "array"], "items": {"type": ["string", "integer"]}},
                "as": {"enum": list(GpuRole)},
                "bind": {"enum": [ON_DEMAND, EXISTING]},
                "file": {"type": "string"},
                "layout": {"type": "string"},
                "condition": {"type": "boolean"},
            },
        },
    },
    "[{select: …, as: …}]",
)

_ENTRY: Final = "give `gpus` an entry: "
_MIG_ENTRY: Final = f"{_ENTRY}{{select: all, as: layout, file: …}}, with `layout` and `condition` if need be"
_VGPU_ENTRY: Final = f"{_ENTRY}{{select: all, as: vgpu, file: …}}, with `layout` and `condition` if need be"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of `dracaena kubelet-plugin`."""

    FORMER: ClassVar[Mapping[str, str]] = {
        "sharing": f"{_ENTRY}{{select: all, as: shared}}",
        "mig": f"{_ENTRY}{{select: all, as: mig}} for onDemand, {{select: all, as: layout, file: …}} for layout",
        "mig-gpus": f"{_ENTRY}{{select: [0, 1], as: mig}}",
        "mig-layouts-file": _MIG_ENTRY,
        "mig-layout": _MIG_ENTRY,
        "mig-layout-condition": _MIG_ENTRY,
        "passthrough": f"{_ENTRY}{{select: all, as: passthrough}} for onDemand, with `bind: existing` for existing",
        "passthrough-gpus": f"{_ENTRY}{{select: ['0000:18:00.0'], as: passthrough}}",
        "vgpu": f"{_ENTRY}{{select: all, as: vgpu}} for existing, {{select: all, as: vgpu, file: …}} for layout",
        "vgpu-layouts-file": _VGPU_ENTRY,
        "vgpu-layout": _VGPU_ENTRY,
        "vgpu-layout-condition": _VGPU_ENTRY,
    }

    node_name: str = option(help="name of this node, and of its pool of devices", form=NODE_NAME, in_sections=False)
    machine: str = option(
        "", help="name of a recorded machine, or path of its JSON file, to use instead of this node's GPUs; empty: NVML"
    )
    faults: str = option(
        "",
        help="JSON file with faults of the recorded machine's GPUs, read repeatedly; empty: their health is unknown",
    )
    kubeconfig: str = option(
        "", help="kubeconfig file; empty: the pod's ServiceAccount, or the usual places", in_sections=False
    )
    read_as_node: bool = option(
        False,
        help="read pods and the Node as the node itself (Kubernetes' constrained impersonation)",
        in_sections=False,
    )
    driver_name: str = option(
        DEFAULT_DRIVER_NAME,
        help="DRA driver name; the taint, CDI vendor and annotations are derived from it",
        form=DRIVER_NAME,
        in_sections=False,
    )
    kubelet_root: str = option("/var/lib/kubelet", help="kubelet's folder (its --root-dir)", in_sections=False)
    cdi_root: str = option("/var/run/cdi", help="folder where the container runtime looks for CDI specs")
    dev_root: str = option(
        "", help="host folder that holds /dev; empty: driver_root if the driver's device nodes are there, else /"
    )
    driver_root: str = option(
        "",
        help="host folder that is the root of the NVIDIA driver installation; empty: /, or none for a recorded machine",
    )
    driver_root_mount: str = option("", help="where this process sees driver_root; empty: at the same path")
    host_root_mount: str = option(
        "", help="where this process sees the host's /; empty: like driver_root if that is /, else at /"
    )
    hook_tool: str = option(
        "",
        help="host path of nvidia-cdi-hook or nvidia-ctk; empty: searched for; none: containers get no hooks",
        form=HOST_FILE,
    )
    pod_uid: str = option(
        "",
        help="UID of the plugin's own pod, so that two instances can run during an upgrade",
        form=UID,
        in_sections=False,
    )
    allocator: str = option(
        CONTROLLER,
        help="who allocates the devices of this node; with kube-scheduler they are published without our taint",
        choices=(CONTROLLER, KUBE_SCHEDULER),
    )
    gpus: GpuList = option(  # noqa: RUF009 - a field, as the others
        ALL_WHOLE,
        help="what the GPUs of this node are for: entries with `select` (`all`, or indices, UUIDs, PCI addresses and "
        "products) and `as`: `whole`, `shared`, `mig`, `layout`, `passthrough` (`bind: existing` if an admin has bound "
        "the GPUs), `vgpu`. `file` is for layouts of MIG devices or vGPUs, `layout` names that of a Node whose label "
        "names none, `condition: true` also reports it as a condition of the Node; empty: all whole",
        structure=GPUS,
    )
    guest_runtime_classes: str = option(
        "kata,kata-*",
        help="comma-separated names of RuntimeClasses that run pods in virtual machines; `*` at the end matches any "
        "rest; such pods get only GPUs for virtual machines",
        form=RUNTIME_CLASSES,
    )
    cc_mode_tool: str = option(
        "",
        help="path of NVIDIA's nvidia_gpu_tools.py (gpu-admin-tools), which switches GPUs to the confidential "
        "computing mode that the label `<driver>/cc-mode` names; empty: the mode is not switched",
        form=HOST_FOLDER,
    )
    fabric_partitions: bool = option(
        False,
        help="Fabric Manager runs in shared NVSwitch mode (FABRIC_MODE=1): publish and activate its partitions",
    )
    fabric_manager_address: str = option(
        "/run/nvidia-fabricmanager/socket",
        help="Fabric Manager's socket on the host (its FM_CMD_UNIX_SOCKET_PATH), or host:port",
        form=FABRIC_MANAGER,
    )
    fabric_manager_library: str = option(
        "",
        help="path of libnvfm.so.1 in driver_root; empty: searched for there",
        form=HOST_FOLDER,
    )
    mps_root: str = option(
        "",
        help="folder of the MPS supervisor (`dracaena mps`), which serves shares whose config has strategy MPS; empty: "
        "no supervisor",
        form=HOST_FOLDER,
    )
    cgroup_root: str = option(
        "/sys/fs/cgroup",
        help="where this process sees the host's cgroup v2 tree, for memory limits of shared GPUs",
        form=HOST_FOLDER,
    )
    watch_health: bool = option(
        True,
        help="watch the health of the GPUs: taint broken ones and tell kubelet",
    )
    watch_fabric: bool = option(
        True, help="take GPUs out of use while their NVSwitch fabric is incomplete, because CUDA fails on them"
    )
    ignored_xids: str = option(
        "",
        help="XIDs that are a program's own fault, in addition to 13, 31, 43, 45, 68, 109; all: no XID makes a GPU "
        "unhealthy",
        form=XIDS,
    )
    fatal_xids: str = option("", help="XIDs that make a GPU unhealthy in any case; all: every XID does", form=XIDS)
    evict_from_lost: bool = option(
        False, help="evict the pods on a GPU that is lost or reports XID 79, 95 or 119 (taint effect NoExecute)"
    )
    http_address: str = option(
        "127.0.0.1:0", help="host:port of /healthz, /readyz and /metrics; port 0: any free port; empty: off"
    )
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    grpc_health_address: str = option(
        "",
        help="host:port of the gRPC health service for probes (services liveness and readiness); empty: off",
        form=ADDRESS,
    )
    podlist_gpus: str = option(
        "uuid",
        help="how podlist.json names GPUs, for readers that do not know UUIDs",
        choices=tuple(each.value for each in GpuNameFormat),
    )
    podlist_in_place: bool = option(
        False, help="overwrite podlist.json instead of replacing it, for readers that mount the file itself"
    )
    job_mapping_dir: str = option(
        "",
        help="folder for the job mapping files of an unmodified dcgm-exporter (its hpc-job-mapping-dir); empty: none",
    )
    device_metadata: bool = option(
        False, help="give containers a file with the attributes of each request's GPUs (KEP-5304)"
    )
    claim_status: bool = option(True, help="report each claim's GPUs in its status.devices")
    log_level: str = option(
        "info", help="lowest severity that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("json", help="format of log lines", choices=("json", "text"))

    def refuse_combinations(self) -> None:
        """Raise BadInputError if two of the settings, or one and an entry of `gpus`, exclude each other."""
        given = (
            (MACHINE, self.machine),
            (FABRIC_PARTITIONS, self.fabric_partitions),
            (CC_MODE_TOOL, self.cc_mode_tool),
        )
        settings = [name for name, value in given if value]
        refuse_combinations([*settings, *(entry.feature for entry in self.gpus.entries)])
