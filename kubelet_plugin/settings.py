"""What an admin can set for the plugin."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.process.settings import DRIVER_NAME, NODE_NAME, UID, WEB_CONFIG_HELP, TextForm, option

CONTROLLER = "controller"
KUBE_SCHEDULER = "kube-scheduler"

EXISTING = "existing"
ON_DEMAND = "onDemand"
OFF = "off"
LAYOUT = "layout"

ALL = "all"
HOST_FILE = TextForm(r"(none|/[^\s:]+)?", "an absolute path, `none`, or nothing")
HOST_FOLDER = TextForm(r"(/[^\s:]*[^\s:/])?", "an absolute path, or nothing")
ADDRESS = TextForm(r"(\S+:[0-9]{1,5})?", "host:port")
FABRIC_MANAGER = TextForm(r"/[^\s:]+|[^\s:/]+:[0-9]{1,5}", "an absolute path, or host:port")
XIDS = TextForm(r"(all|[0-9]{1,6}(,[0-9]{1,6})*)?", "XID numbers with commas between them, `all`, or nothing")
PCI_ADDRESSES = TextForm(
    r"(all|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](,[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])*)",
    "PCI addresses as in /sys/bus/pci/devices with commas between them, or `all`",
)
RUNTIME_CLASSES = TextForm(
    r"([a-z0-9][-.a-z0-9]*\*?(,[a-z0-9][-.a-z0-9]*\*?)*)?",
    "names of RuntimeClasses with commas between them, `*` at the end for any rest, or nothing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of `dracaena kubelet-plugin`."""

    node_name: str = option(
        help="name of this node; its pool of devices has the same name", form=NODE_NAME, in_sections=False
    )
    machine: str = option(
        "", help="name of a recorded machine or path of its JSON file, played in place of this node's GPUs; empty: NVML"
    )
    faults: str = option(
        "",
        help="JSON file with faults of a recorded machine's GPUs, read again and again; empty: its health is unknown",
    )
    kubeconfig: str = option(
        "", help="kubeconfig file; without it the pod's ServiceAccount or the usual places", in_sections=False
    )
    read_as_node: bool = option(
        False,
        help="read pods and the Node as the node itself, so that the token needs no right to read those of others "
        "(Kubernetes' constrained impersonation)",
        in_sections=False,
    )
    driver_name: str = option(
        DEFAULT_DRIVER_NAME,
        help="DRA driver name; taint, CDI vendor and annotations follow it",
        form=DRIVER_NAME,
        in_sections=False,
    )
    kubelet_root: str = option("/var/lib/kubelet", help="kubelet's folder (its --root-dir)", in_sections=False)
    cdi_root: str = option("/var/run/cdi", help="folder where the container runtime looks for CDI specs")
    dev_root: str = option(
        "", help="folder of the host that holds its /dev; empty: driver_root where that has the driver's nodes, else /"
    )
    driver_root: str = option(
        "", help="folder of the host that holds the NVIDIA driver as / does; empty: /, for a recorded machine none"
    )
    driver_root_mount: str = option("", help="where this process sees driver_root; empty: at the same path")
    host_root_mount: str = option(
        "", help="where this process sees the host's /; empty: as driver_root when that is /, else at /"
    )
    hook_tool: str = option(
        "",
        help="path of nvidia-cdi-hook or nvidia-ctk on the host; empty: looked for; none: containers get no hooks",
        form=HOST_FILE,
    )
    pod_uid: str = option(
        "", help="UID of the plugin's own pod: lets two instances run during an upgrade", form=UID, in_sections=False
    )
    allocator: str = option(
        CONTROLLER,
        help="who allocates the devices of this node; with kube-scheduler they are published without our taint",
        choices=(CONTROLLER, KUBE_SCHEDULER),
    )
    sharing: str = option(
        "",
        help="GPUs that several claims may share, by memory and cores: `all`, or indices, UUIDs and product names with "
        "commas between them; empty: none",
    )
    mig: str = option(
        EXISTING,
        help="MIG devices: `existing` are those that an admin made; with `onDemand` they are made when claims get "
        "them, on the GPUs of mig-gpus; with `layout` as a layout of mig-layouts-file says",
        choices=(EXISTING, ON_DEMAND, LAYOUT),
    )
    mig_gpus: str = option(
        ALL,
        help="GPUs that are divided with mig=onDemand: `all`, or indices, UUIDs and product names with commas between "
        "them",
    )
    mig_layouts_file: str = option(
        "", help="file of MIG layouts for mig=layout, in the form of NVIDIA's mig-parted", form=HOST_FOLDER
    )
    mig_layout: str = option(
        "", help="layout of a node without the label `<driver>/mig-layout`, which wins; empty: GPUs stay as they are"
    )
    mig_layout_condition: bool = option(
        False, help="write condition MigLayoutApplied of the Node; needs the right to patch nodes/status"
    )
    passthrough: str = option(
        OFF,
        help="GPUs for virtual machines: `existing` are those that an admin has bound to vfio-pci or a variant of it; "
        "with `onDemand` those of passthrough-gpus are bound when claims get them, and back afterwards; with `off` "
        "none is published",
        choices=(OFF, EXISTING, ON_DEMAND),
    )
    passthrough_gpus: str = option(
        ALL,
        help="GPUs that are bound with passthrough=onDemand: `all`, or PCI addresses (0000:18:00.0) with commas "
        "between them",
        form=PCI_ADDRESSES,
    )
    guest_runtime_classes: str = option(
        "kata,kata-*",
        help="RuntimeClasses that run pods in virtual machines, names with commas between them, `*` at the end for any "
        "rest; such pods get GPUs for virtual machines alone",
        form=RUNTIME_CLASSES,
    )
    cc_mode_tool: str = option(
        "",
        help="path of NVIDIA's program nvidia_gpu_tools.py (gpu-admin-tools), which switches the GPUs to the mode of "
        "confidential computing that the label `<driver>/cc-mode` says, while no claim has one; empty: nothing does",
        form=HOST_FOLDER,
    )
    vgpu: str = option(
        OFF,
        help="vGPUs for virtual machines: `existing` are those that NVIDIA's vGPU manager has made; nothing else of "
        "its GPUs is published then; with `layout` they are made as a layout of vgpu-layouts-file says; with `off` no "
        "vGPU is published",
        choices=(OFF, EXISTING, LAYOUT),
    )
    vgpu_layouts_file: str = option(
        "", help="file of vGPU layouts for vgpu=layout, in the form of NVIDIA's vgpu-device-manager", form=HOST_FOLDER
    )
    vgpu_layout: str = option(
        "", help="layout of a node without the label `<driver>/vgpu-layout`, which wins; empty: vGPUs stay as they are"
    )
    vgpu_layout_condition: bool = option(
        False, help="write condition VgpuLayoutApplied of the Node; needs the right to patch nodes/status"
    )
    fabric_partitions: bool = option(
        False,
        help="Fabric Manager runs in its shared NVSwitch mode (FABRIC_MODE=1): publish its partitions, count no NVLink "
        "beyond them, and activate those of claims",
    )
    fabric_manager_address: str = option(
        "/run/nvidia-fabricmanager/socket",
        help="Fabric Manager's socket on the host (its FM_CMD_UNIX_SOCKET_PATH), or host:port",
        form=FABRIC_MANAGER,
    )
    fabric_manager_library: str = option(
        "",
        help="path of libnvfm.so.1 in driver_root; empty: looked for there",
        form=HOST_FOLDER,
    )
    mps_root: str = option(
        "",
        help="folder of the MPS supervisor (`dracaena mps`), which serves shares whose config says strategy MPS; "
        "empty: there is none",
        form=HOST_FOLDER,
    )
    cgroup_root: str = option(
        "/sys/fs/cgroup",
        help="where this process sees the host's cgroup v2 tree, in which pods get memory limits of shared GPUs",
        form=HOST_FOLDER,
    )
    watch_health: bool = option(
        True,
        help="watch the health of the GPUs: taint what is broken and tell kubelet",
    )
    watch_fabric: bool = option(
        True, help="take GPUs out of use while their NVSwitch fabric is not complete: CUDA fails on them"
    )
    ignored_xids: str = option(
        "",
        help="XIDs that are a program's own fault, beside 13, 31, 43, 45, 68, 109; all: no XID makes a GPU unhealthy",
        form=XIDS,
    )
    fatal_xids: str = option("", help="XIDs that make a GPU unhealthy, whatever is ignored; all: each does", form=XIDS)
    evict_from_lost: bool = option(
        False, help="end the pods on a GPU that is lost or reports XID 79, 95 or 119 (taint effect NoExecute)"
    )
    http_address: str = option("127.0.0.1:0", help="host:port of /healthz, /readyz, /metrics; port 0: any; empty: off")
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    grpc_health_address: str = option(
        "",
        help="host:port of the gRPC health service for probes (services liveness and readiness); empty: off",
        form=ADDRESS,
    )
    podlist_gpus: str = option(
        "uuid",
        help="what names a GPU in podlist.json, for readers that know no UUIDs",
        choices=tuple(each.value for each in GpuNameFormat),
    )
    podlist_in_place: bool = option(
        False, help="overwrite podlist.json instead of replacing it, for readers that mounted the single file"
    )
    job_mapping_dir: str = option(
        "", help="folder of job mapping files for an unmodified dcgm-exporter (its hpc-job-mapping-dir); empty: none"
    )
    device_metadata: bool = option(
        False, help="give containers a file with the attributes of the GPUs of each request (KEP-5304)"
    )
    claim_status: bool = option(True, help="say in status.devices of each claim which GPUs it has")
    log_level: str = option("info", help="least level of log lines", choices=("debug", "info", "warning", "error"))
    log_format: str = option("json", help="form of log lines", choices=("json", "text"))
