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
XIDS = TextForm(r"(all|[0-9]{1,6}(,[0-9]{1,6})*)?", "comma-separated XID numbers, `all`, or nothing")
PCI_ADDRESSES = TextForm(
    r"(all|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](,[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])*)",
    "comma-separated PCI addresses as in /sys/bus/pci/devices, or `all`",
)
RUNTIME_CLASSES = TextForm(
    r"([a-z0-9][-.a-z0-9]*\*?(,[a-z0-9][-.a-z0-9]*\*?)*)?",
    "comma-separated names of RuntimeClasses, where `*` at the end matches any rest, or nothing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of `dracaena kubelet-plugin`."""

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
        help="read pods and the Node as the node itself, so that the token needs no right to read those of other nodes "
        "(Kubernetes' constrained impersonation)",
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
    sharing: str = option(
        "",
        help="GPUs that several claims may share, by memory and cores: `all`, or a comma-separated list of indices, "
        "UUIDs and product names; empty: none",
    )
    mig: str = option(
        EXISTING,
        help="MIG devices: with `existing`, those that an admin created; with `onDemand`, the GPUs of mig-gpus are "
        "divided as claims need it; with `layout`, GPUs are divided as a layout in mig-layouts-file says",
        choices=(EXISTING, ON_DEMAND, LAYOUT),
    )
    mig_gpus: str = option(
        ALL,
        help="GPUs that are divided with mig=onDemand: `all`, or a comma-separated list of indices, UUIDs and product "
        "names",
    )
    mig_layouts_file: str = option(
        "", help="file with MIG layouts for mig=layout, in the format of NVIDIA's mig-parted", form=HOST_FOLDER
    )
    mig_layout: str = option(
        "",
        help="layout of a node that lacks the label `<driver>/mig-layout`, which takes precedence; empty: GPUs stay as "
        "they are",
    )
    mig_layout_condition: bool = option(
        False, help="set the Node's condition MigLayoutApplied; needs the right to patch nodes/status"
    )
    passthrough: str = option(
        OFF,
        help="GPUs for virtual machines: with `existing`, those that an admin has bound to vfio-pci or a variant of "
        "it; with `onDemand`, those of passthrough-gpus are bound when claims get them, and returned to the GPU "
        "driver afterwards; with `off`, none",
        choices=(OFF, EXISTING, ON_DEMAND),
    )
    passthrough_gpus: str = option(
        ALL,
        help="GPUs that are bound with passthrough=onDemand: `all`, or a comma-separated list of PCI addresses "
        "(0000:18:00.0)",
        form=PCI_ADDRESSES,
    )
    guest_runtime_classes: str = option(
        "kata,kata-*",
        help="comma-separated names of RuntimeClasses that run pods in virtual machines; `*` at the end matches any "
        "rest; such pods get only GPUs for virtual machines",
        form=RUNTIME_CLASSES,
    )
    cc_mode_tool: str = option(
        "",
        help="path of NVIDIA's nvidia_gpu_tools.py (gpu-admin-tools), which switches GPUs that no claim has to the "
        "confidential computing mode that the label `<driver>/cc-mode` names; empty: the mode is not switched",
        form=HOST_FOLDER,
    )
    vgpu: str = option(
        OFF,
        help="vGPUs for virtual machines: with `existing`, those that exist on GPUs of NVIDIA's vGPU manager, and "
        "nothing else of these GPUs is published; with `layout`, they are created as a layout in "
        "vgpu-layouts-file says; with `off`, none are published",
        choices=(OFF, EXISTING, LAYOUT),
    )
    vgpu_layouts_file: str = option(
        "",
        help="file with vGPU layouts for vgpu=layout, in the format of NVIDIA's vgpu-device-manager",
        form=HOST_FOLDER,
    )
    vgpu_layout: str = option(
        "",
        help="layout of a node that lacks the label `<driver>/vgpu-layout`, which takes precedence; empty: vGPUs stay "
        "as they are",
    )
    vgpu_layout_condition: bool = option(
        False, help="set the Node's condition VgpuLayoutApplied; needs the right to patch nodes/status"
    )
    fabric_partitions: bool = option(
        False,
        help="Fabric Manager runs in shared NVSwitch mode (FABRIC_MODE=1): publish its partitions, ignore NVLinks "
        "beyond them, and activate the partitions of claims",
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
        help="where this process sees the host's cgroup v2 tree, in which pods get the memory limits of their shared "
        "GPUs",
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
    fatal_xids: str = option(
        "", help="XIDs that make a GPU unhealthy even if they are ignored otherwise; all: every XID does", form=XIDS
    )
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
