"""Write the Grafana dashboards of the chart, for the fleet, a team, a node and a job, with Grafana's foundation SDK.

`make chart` runs it; `--check` changes nothing and exits 1 where something would change. Each board leads to the other
three, and tables lead from a node, a namespace or a pod to its board.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shown
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER: Final = Path(__file__).parent / "dracaena" / "files" / "dashboards"
BOARDS: Final = {"fleet": "fleet", "team": "GPUs of a team", "node": "nodes", "job": "jobs"}
"""File name, which is also the end of the uid → title."""

_SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_TO: Final = "?${__url_time_range}&var-datasource=${datasource}"
_POD: Final = f"/d/dracaena-job{_TO}&var-namespace=${{__data.fields.namespace}}&var-pod=${{__data.fields.pod}}"
_LINKS: Final = {
    "namespace": f"/d/dracaena-team{_TO}&var-namespace=${{__value.text}}",
    "node": f"/d/dracaena-node{_TO}&var-node=${{__value.text}}",
    "pod": _POD,
}
"""Column of a table → where its cells lead."""

_NAMESPACES: Final = '{__name__=~"dracaena_gpu_allocation_info|dracaena_controller_quota_limit"}'
_HELD: Final = 'label_join(dracaena_gpu_allocation_info, "UUID", "", "uuid")'
_CUT: Final = 'label_join(dracaena_gpu_allocation_info{parent_uuid!=""}, "UUID", "", "parent_uuid")'
_FREE: Final = f"dracaena_exporter_gpu_up == 1 unless on (UUID) {_HELD} unless on (UUID) {_CUT}"
_TAKEN: Final = f"dracaena_exporter_gpu_up and on (UUID) {_HELD} or dracaena_exporter_gpu_up and on (UUID) {_CUT}"
_OF: Final = '{namespace=~"$namespace"}'
_JOB: Final = '{namespace=~"$namespace", pod=~"$pod"}'
_NODE: Final = '{node=~"$node"}'

Steps = Sequence[tuple[str, float | None]]
"""(colour, from which value on), ascending; None: from the lowest on."""

_PLAIN: Final[Steps] = (("blue", None),)
_NONE_IS_WELL: Final[Steps] = (("green", None), ("red", 1))
_NONE_IS_BEST: Final[Steps] = (("green", None), ("orange", 1))
_SOME_IS_WELL: Final[Steps] = (("orange", None), ("green", 1))


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    made = {path: text.encode() for path, text in generated().items()}
    there = {path: path.read_bytes() for path in FOLDER.glob("*.json")}
    for path in sorted(made.keys() | there.keys()):
        if made.get(path) == there.get(path):
            continue
        if check:
            sys.stderr.write(f"{path} is not what `make chart` writes\n")
        elif path in made:
            path.write_bytes(made[path])
        else:
            path.unlink()
    return 1 if check and made != there else 0


def generated() -> dict[Path, str]:
    """Return the text of each file that belongs into the folder, and there are no others."""
    boards = {"fleet": fleet(), "team": team(), "node": node(), "job": job()}
    return {
        FOLDER / f"{name}.json": JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).encode(made.build()) + "\n"
        for name, made in boards.items()
    }


def fleet() -> dashboard.Dashboard:
    """Return the board of admins: is all well, what is free, who waits and why."""
    return _board(
        "fleet",
        (),
        _stat(
            "Controllers that lead",
            "One is right. While none leads no pod gets GPUs; pods that have theirs keep running.",
            "sum(dracaena_controller_leader)",
            (("red", None), ("green", 1), ("red", 2)),
        ),
        _stat(
            "GPUs with a container",
            "Part of the GPUs that the exporters see. One that is cut or shared counts once, however many use it.",
            f"(count({_TAKEN}) or vector(0)) / count(dracaena_exporter_gpu_up)",
            (("blue", None), ("orange", 0.95)),
            "percentunit",
        ),
        _stat(
            "GPUs free",
            "GPUs that a pod without tolerations could get now.",
            'max(dracaena_controller_gpus{state="free"})',
            _SOME_IS_WELL,
        ),
        _stat(
            "Free on one node, at most",
            "A pod that asks for more whole GPUs than this fits on no node now.",
            "max(dracaena_controller_most_free_gpus)",
            _SOME_IS_WELL,
        ),
        _stat(
            "Pods that wait",
            "Pods whose claims cannot be allocated now, for whatever reason.",
            "sum(max by (reason) (dracaena_controller_waiting_pods)) or vector(0)",
            _NONE_IS_BEST,
        ),
        _stat(
            "Pods that need a person",
            "Pods that wait until somebody changes a claim, a class, a right or a setting. Their Events say what.",
            "sum(max by (reason) (dracaena_controller_waiting_pods{reason!~"
            '"no-node|held|took-too-long|incomplete-gang|gang-too-large|quota"})) '
            "or vector(0)",
            _NONE_IS_WELL,
        ),
        _stat(
            "Longest wait",
            "Since the oldest waiting pod was created.",
            "max(dracaena_controller_oldest_waiting_pod_seconds)",
            (("green", None), ("orange", 600), ("red", 3600)),
            "s",
        ),
        _stat(
            "Devices unhealthy",
            "Devices that are tainted because of a fault: they go to no new claim.",
            'sum(dracaena_plugin_device_health{health="unhealthy"}) or vector(0)',
            _NONE_IS_WELL,
        ),
        _stat(
            "GPUs lost",
            "GPUs that stopped answering while the exporter ran. Pods that have them cannot work.",
            "count(dracaena_exporter_gpu_up == 0) or vector(0)",
            _NONE_IS_WELL,
        ),
        _stat(
            "Nodes in trouble",
            "Nodes with trouble of driver or GPUs, a stale reading, or a plugin that kubelet has not taken.",
            "count(count by (node) (dracaena_plugin_troubles > 0 or dracaena_plugin_reading_stale > 0 "
            "or dracaena_plugin_registered == 0)) or vector(0)",
            _NONE_IS_WELL,
        ),
        _stat(
            "Allocated and idle",
            "Containers that have had a device for longer than idle-after-s without using it.",
            "sum(dracaena_gpu_allocated_idle) or vector(0)",
            _NONE_IS_BEST,
        ),
        _stat(
            "GPUs",
            "GPUs that the exporters see, including those that were lost.",
            "count(dracaena_exporter_gpu_up)",
            _PLAIN,
        ),
        _lines(
            "Pods that wait, by reason",
            "no-node fits on no node now; quota: the namespace holds as much as it may; gang-too-large: all nodes "
            "together have less; incomplete-gang: other pods do not exist yet; held and took-too-long pass by "
            "themselves; all others need a person.",
            {"{{reason}}": "max by (reason) (dracaena_controller_waiting_pods)"},
        ),
        _lines(
            "What fits: nodes with so many GPUs free",
            "Nodes on which at least 1, 2, 4 or 8 GPUs have no container. Many free GPUs and few such nodes mean that "
            "they are fragmented. cpu, memory and taints do not count here.",
            {f"{n} or more": f"count(count by (node) ({_FREE}) >= {n}) or vector(0)" for n in (1, 2, 4, 8)},
        ),
        _lines(
            "Devices, allocated of total",
            "What plugins publish, and what prepared claims hold. A MIG device is one device, as is a GPU.",
            {"published": "sum(dracaena_plugin_published_devices)", "in use": "sum(dracaena_plugin_prepared_devices)"},
        ),
        _lines(
            "Free whole GPUs",
            "In the cluster, and on the node that has the most of them. The distance between the two cannot be used by "
            "one pod.",
            {
                "in the cluster": 'max(dracaena_controller_gpus{state="free"})',
                "on one node at most": "max(dracaena_controller_most_free_gpus)",
            },
        ),
        _lines(
            "GPUs that containers have, by namespace",
            "A GPU that is shared counts once for each namespace that uses it; a MIG device counts as one.",
            {"{{namespace}}": "count by (namespace) (count by (namespace, uuid) (dracaena_gpu_allocation_info))"},
        ),
        _lines(
            "Quota used, by namespace",
            "The limit of each namespace of which most is held. At 100 % its next pod waits.",
            {
                "{{namespace}}": "max by (namespace) ("
                "max by (namespace, counted, name) (dracaena_controller_quota_held) "
                "/ max by (namespace, counted, name) (dracaena_controller_quota_limit))"
            },
            "percentunit",
        ),
        _table(
            "Nodes",
            "Devices that are published, in use and unhealthy. A name leads to the board of the node.",
            "node",
            {
                "published": "sum by (node) (dracaena_plugin_published_devices)",
                "in use": "sum by (node) (dracaena_plugin_prepared_devices)",
                "unhealthy": 'sum by (node) (dracaena_plugin_device_health{health="unhealthy"})',
            },
        ),
        _table(
            "Teams",
            "Devices that containers of a namespace have, and those of them that are idle. A name leads to its board.",
            "namespace",
            {
                "devices": "count by (namespace) (count by (namespace, uuid) (dracaena_gpu_allocation_info))",
                "idle": "sum by (namespace) (dracaena_gpu_allocated_idle)",
            },
        ),
        _lines(
            "Devices by health",
            "As the plugins' health checks see them; a plugin that watches no health reports none.",
            {"{{health}}": "sum by (health) (dracaena_plugin_device_health)"},
        ),
        _lines(
            "GPU utilization",
            "Mean of the GPUs that containers have, and of the others.",
            {
                "with a container": f"avg(DCGM_FI_DEV_GPU_UTIL and on (UUID) {_HELD})",
                "without": f"avg(DCGM_FI_DEV_GPU_UTIL unless on (UUID) {_HELD})",
            },
            "percent",
        ),
        _lines(
            "Sets of GPUs allocated in an hour, by worst link",
            "How well pods with two GPUs or more were linked: the worst link between any two GPUs of a pod.",
            {
                "{{worst_link}}": "sum by (worst_link) "
                '(increase(dracaena_controller_allocated_sets_total{gpus!="1"}[1h]))'
            },
        ),
        _lines(
            "Decisions a second, by result",
            "unsatisfied: the pod fits on no node now; refused: somebody has to act.",
            {"{{result}}": "sum by (result) (rate(dracaena_controller_decisions_total[5m]))"},
            "ops",
        ),
        _lines(
            "Time of a decision",
            "Median, and what one decision of a hundred exceeds; without any write.",
            {
                name: f"histogram_quantile({part}, sum by (le) (rate(dracaena_controller_decision_seconds_bucket[5m])))"
                for name, part in (("p50", 0.5), ("p99", 0.99))
            },
            "s",
        ),
        _lines(
            "Conflicts, lost writes and take-backs a second",
            "Now and then is normal. If they last, another program writes the same claims, or pods are not bound.",
            {
                "conflicts": "sum(rate(dracaena_controller_write_conflicts_total[5m]))",
                "lost": "sum(rate(dracaena_controller_lost_writes_total[5m]))",
                "taken back": "sum(rate(dracaena_controller_take_backs_total[5m]))",
            },
            "ops",
        ),
        _lines(
            "Claims that failed, by node",
            "Calls of kubelet to prepare or unprepare a claim that did not succeed, a second.",
            {
                "{{node}} {{operation}} {{result}}": "sum by (node, operation, result) "
                '(rate(dracaena_plugin_claims_total{result!="ok"}[5m]))'
            },
            "ops",
        ),
        _lines(
            "XIDs in 5 minutes, by node and number",
            "What the NVIDIA driver reported. 79 means that a GPU has fallen off the bus.",
            {"{{node}} {{xid}}": "sum by (node, xid) (increase(dracaena_plugin_xids_total[5m]))"},
        ),
    )


def team() -> dashboard.Dashboard:
    """Return the board of a team: what its namespaces hold of their quota, and what they do with it."""
    return _board(
        "team",
        (_variable("namespace", "Namespace", f"label_values({_NAMESPACES}, namespace)"),),
        _stat(
            "Devices",
            "GPUs, MIG devices and shared GPUs that containers of the team have.",
            f"count(count by (uuid) (dracaena_gpu_allocation_info{_OF})) or vector(0)",
            _PLAIN,
        ),
        _stat(
            "Quota used",
            "The limit of which most is held. At 100 % the next pod waits.",
            f"max(max by (namespace, counted, name) (dracaena_controller_quota_held{_OF}) "
            f"/ max by (namespace, counted, name) (dracaena_controller_quota_limit{_OF})) or vector(0)",
            (("green", None), ("orange", 0.8), ("red", 1)),
            "percentunit",
        ),
        _stat(
            "Pods with GPUs",
            "Pods of the team that have a device now.",
            f"count(count by (namespace, pod) (dracaena_gpu_allocation_info{_OF})) or vector(0)",
            _PLAIN,
        ),
        _stat(
            "Utilization",
            "Mean of the GPUs that one container of the team has to itself.",
            f"avg(DCGM_FI_DEV_GPU_UTIL{_OF}) or vector(0)",
            (("red", None), ("orange", 20), ("green", 50)),
            "percent",
        ),
        _stat(
            "Allocated and idle",
            "Containers that have had a device for longer than idle-after-s without using it.",
            f"sum(dracaena_gpu_allocated_idle{_OF}) or vector(0)",
            _NONE_IS_BEST,
        ),
        _stat(
            "GPUs lost",
            "GPUs of the team that stopped answering: their pods have to be deleted.",
            f"count(dracaena_exporter_gpu_up == 0 and on (UUID) {_held(_OF)}) or vector(0)",
            _NONE_IS_WELL,
        ),
        _who_has(_OF, "A pod leads to the board of jobs, a node to its own."),
        _lines(
            "Quota: held",
            "What the team holds of each of its limits, as a part of the limit. What is being allocated counts.",
            {
                "{{namespace}} {{counted}} {{name}}": "max by (namespace, counted, name) "
                f"(dracaena_controller_quota_held{_OF}) / max by (namespace, counted, name) "
                f"(dracaena_controller_quota_limit{_OF})"
            },
            "percentunit",
        ),
        _lines(
            "Devices by pod",
            "GPUs, MIG devices and shared GPUs of each pod.",
            {
                "{{namespace}}/{{pod}}": "count by (namespace, pod) "
                f"(count by (namespace, pod, uuid) (dracaena_gpu_allocation_info{_OF}))"
            },
        ),
        _lines(
            "GPU utilization by pod",
            "Of GPUs that one container has to itself; of a shared one, what the container uses of it.",
            {
                "{{namespace}}/{{pod}}": f"avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{_OF}) "
                f"or 100 * avg by (namespace, pod) (dracaena_gpu_container_sm_ratio{_OF})"
            },
            "percent",
        ),
        _lines(
            "Memory by pod",
            "Memory of devices that the processes of a pod use.",
            {"{{namespace}}/{{pod}}": f"sum by (namespace, pod) (dracaena_gpu_container_memory_used_bytes{_OF})"},
            "bytes",
        ),
        _lines(
            "Memory of shares",
            "What claims for a share of a GPU got. The panel is empty without shares.",
            {"{{namespace}}/{{pod}}": f"sum by (namespace, pod) (dracaena_gpu_share_memory_bytes{_OF})"},
            "bytes",
        ),
        _lines(
            "Power by pod",
            "Of GPUs that one container has to itself.",
            {"{{namespace}}/{{pod}}": f"sum by (namespace, pod) (DCGM_FI_DEV_POWER_USAGE{_OF})"},
            "watt",
        ),
        _lines(
            "Allocated and idle, by pod",
            "For how long a container has had a device without using it.",
            {"{{namespace}}/{{pod}}": f"max by (namespace, pod) (dracaena_gpu_allocated_idle_seconds{_OF})"},
            "s",
        ),
    )


def node() -> dashboard.Dashboard:
    """Return the board of nodes: devices and health, what each GPU does, and what the plugin does."""
    return _board(
        "node",
        (_variable("node", "Node", "label_values(dracaena_plugin_registered, node)"),),
        _stat(
            "Devices",
            "Devices in the ResourceSlices of the node.",
            f"sum(dracaena_plugin_published_devices{_NODE})",
            _PLAIN,
        ),
        _stat(
            "Devices in use",
            "Part of them that prepared claims hold.",
            f"sum(dracaena_plugin_prepared_devices{_NODE}) / sum(dracaena_plugin_published_devices{_NODE})",
            _PLAIN,
            "percentunit",
        ),
        _stat(
            "Devices unhealthy",
            "They are tainted and go to no new claim. The Event GpuUnhealthy on the node names them.",
            'sum(dracaena_plugin_device_health{node=~"$node", health="unhealthy"}) or vector(0)',
            _NONE_IS_WELL,
        ),
        _stat(
            "GPUs lost",
            "GPUs that stopped answering while the exporter ran.",
            f"count(dracaena_exporter_gpu_up{_NODE} == 0) or vector(0)",
            _NONE_IS_WELL,
        ),
        _stat(
            "Troubles",
            "Faults of driver or GPUs that the Events of the node explain, and readings that are stale.",
            f"count(dracaena_plugin_troubles{_NODE} > 0 or dracaena_plugin_reading_stale{_NODE} > 0) or vector(0)",
            _NONE_IS_WELL,
        ),
        _stat(
            "Plugins not registered",
            "kubelet has refused them: no pod with GPUs can start or end there.",
            f"count(dracaena_plugin_registered{_NODE} == 0) or vector(0)",
            _NONE_IS_WELL,
        ),
        _who_has(_NODE, "A pod leads to the board of jobs, a namespace to that of teams."),
        _lines(
            "Devices that are not healthy",
            "unknown: a health check could not say. Unhealthy ones are tainted.",
            {
                "{{node}} {{health}}": "sum by (node, health) "
                '(dracaena_plugin_device_health{node=~"$node", health!="healthy"})'
            },
        ),
        _lines(
            "Trouble with driver or GPUs",
            "By the reason of the Event on the node; and GPUs that do not answer or have no name.",
            {
                "{{node}} {{reason}}": f"max by (node, reason) (dracaena_plugin_troubles{_NODE})",
                "{{node}} GPU {{gpu}} is lost": f"max by (node, gpu) (1 - dracaena_exporter_gpu_up{_NODE}) > 0",
                "{{node}} reading is stale": f"max by (node) (dracaena_plugin_reading_stale{_NODE}) > 0",
                "{{node}} unnamed GPUs": f"max by (node) (dracaena_exporter_unnamed_gpus{_NODE}) > 0",
            },
        ),
        _lines(
            "GPU utilization",
            "Time during which a GPU was busy. A GPU in MIG mode reports none.",
            {"{{node}} {{gpu}}": f"max by (node, gpu) (DCGM_FI_DEV_GPU_UTIL{_NODE})"},
            "percent",
        ),
        _lines(
            "Memory used",
            "Of a GPU, or of a MIG device.",
            {
                "{{node}} {{gpu}} {{GPU_I_ID}} {{GPU_I_PROFILE}}": "max by (node, gpu, GPU_I_ID, GPU_I_PROFILE) "
                f"(DCGM_FI_DEV_FB_USED{_NODE})"
            },
            "mbytes",
        ),
        _lines(
            "Temperature",
            "Of GPU and memory. A GPU that is hotter than the others of its node throttles first.",
            {
                "{{node}} {{gpu}}": f"max by (node, gpu) (DCGM_FI_DEV_GPU_TEMP{_NODE})",
                "{{node}} {{gpu}} memory": f"max by (node, gpu) (DCGM_FI_DEV_MEMORY_TEMP{_NODE})",
            },
            "celsius",
        ),
        _lines(
            "Power",
            "What each GPU draws.",
            {"{{node}} {{gpu}}": f"max by (node, gpu) (DCGM_FI_DEV_POWER_USAGE{_NODE})"},
            "watt",
        ),
        _lines(
            "XIDs in 5 minutes",
            "What the NVIDIA driver reported. 79 means that a GPU has fallen off the bus.",
            {"{{node}} {{xid}}": f"sum by (node, xid) (increase(dracaena_plugin_xids_total{_NODE}[5m]))"},
        ),
        _lines(
            "Remapped rows and PCIe retries",
            "Memory that has failed, and transfers over PCIe that had to be repeated in 5 minutes.",
            {
                "{{node}} {{gpu}} rows": f"max by (node, gpu) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{_NODE}) > 0",
                "{{node}} {{gpu}} retries": "max by (node, gpu) "
                f"(increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{_NODE}[5m])) > 0",
            },
        ),
        _lines(
            "Time to prepare a claim, of one in a hundred",
            "From the call of kubelet to the answer. kubelet waits 45 s at most.",
            {
                "{{node}}": "histogram_quantile(0.99, sum by (node, le) (rate("
                'dracaena_plugin_claim_duration_seconds_bucket{node=~"$node", operation="prepare"}[5m])))'
            },
            "s",
        ),
        _lines(
            "Age of podlist.json, at most",
            "More than a minute: who has which GPU is not known there.",
            {
                f"{{{{node}}}} {program}": "max by (node) "
                f"(max_over_time(dracaena_{program}_podlist_age_seconds{_NODE}[5m]))"
                for program in ("plugin", "exporter")
            },
            "s",
        ),
    )


def job() -> dashboard.Dashboard:
    """Return the board of jobs: what some pods do with each of their GPUs."""
    return _board(
        "job",
        (
            _variable("namespace", "Namespace", "label_values(dracaena_gpu_allocation_info, namespace)"),
            _variable("pod", "Pod", f"label_values(dracaena_gpu_allocation_info{_OF}, pod)"),
        ),
        _stat(
            "Devices",
            "GPUs, MIG devices and shared GPUs of these pods.",
            f"count(count by (uuid) (dracaena_gpu_allocation_info{_JOB})) or vector(0)",
            _PLAIN,
        ),
        _stat(
            "Nodes",
            "Nodes on which they are: traffic between nodes does not use NVLinks of a node.",
            f"count(count by (node) (dracaena_gpu_allocation_info{_JOB})) or vector(0)",
            _PLAIN,
        ),
        _stat(
            "Utilization",
            "Mean of the GPUs that one container has to itself.",
            f"avg(DCGM_FI_DEV_GPU_UTIL{_JOB}) or vector(0)",
            (("red", None), ("orange", 20), ("green", 50)),
            "percent",
        ),
        _stat(
            "Least busy GPU",
            "Much less than the mean: one worker waits for others, or for data.",
            f"min(DCGM_FI_DEV_GPU_UTIL{_JOB}) or vector(0)",
            (("red", None), ("orange", 20), ("green", 50)),
            "percent",
        ),
        _stat(
            "Longest idle",
            "For how long a container has had a device without using it.",
            f"max(dracaena_gpu_allocated_idle_seconds{_JOB}) or vector(0)",
            (("green", None), ("orange", 900), ("red", 3600)),
            "s",
        ),
        _stat(
            "GPUs lost",
            "GPUs of these pods that stopped answering: delete the pods.",
            f"count(dracaena_exporter_gpu_up == 0 and on (UUID) {_held(_JOB)}) or vector(0)",
            _NONE_IS_WELL,
        ),
        _who_has(_JOB, "A node leads to its board, a namespace to that of teams."),
        _lines(
            "GPU utilization",
            "Of each GPU that one container has to itself.",
            {"{{pod}} {{node}} {{gpu}}": f"max by (pod, node, gpu) (DCGM_FI_DEV_GPU_UTIL{_JOB})"},
            "percent",
        ),
        _lines(
            "SMs that the processes of a container use",
            "Mean fraction of all its GPUs since the last scrape; also of shared ones, not of MIG devices.",
            {"{{pod}} {{container}}": f"avg by (namespace, pod, container) (dracaena_gpu_container_sm_ratio{_JOB})"},
            "percentunit",
        ),
        _lines(
            "Memory that the processes of a container use",
            "Of all devices of a container together, also of shared ones.",
            {
                "{{pod}} {{container}}": "sum by (namespace, pod, container) "
                f"(dracaena_gpu_container_memory_used_bytes{_JOB})"
            },
            "bytes",
        ),
        _lines(
            "Tensor cores and memory bandwidth",
            "Fraction of cycles in which each was active; on Hopper and later.",
            {
                "{{pod}} tensor": f"avg by (namespace, pod) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_JOB})",
                "{{pod}} memory": f"avg by (namespace, pod) (DCGM_FI_PROF_DRAM_ACTIVE{_JOB})",
            },
            "percentunit",
        ),
        _lines(
            "PCIe traffic",
            "To and from each GPU; on Hopper and later.",
            {
                "{{pod}} {{gpu}} sent": f"max by (pod, node, gpu) (DCGM_FI_PROF_PCIE_TX_BYTES{_JOB})",
                "{{pod}} {{gpu}} received": f"max by (pod, node, gpu) (DCGM_FI_PROF_PCIE_RX_BYTES{_JOB})",
            },
            "Bps",
        ),
        _lines(
            "Power",
            "What the GPUs of a pod draw that one container has to itself.",
            {"{{pod}}": f"sum by (namespace, pod) (DCGM_FI_DEV_POWER_USAGE{_JOB})"},
            "watt",
        ),
        _lines(
            "Last XID",
            "Number of the last fault that the driver reported of a GPU, since the exporter started; 0: none.",
            {"{{pod}} {{node}} {{gpu}}": f"max by (pod, node, gpu) (DCGM_FI_DEV_XID_ERRORS{_JOB})"},
        ),
    )


def _held(selector: str) -> str:
    """Return the devices of some containers, with the label UUID as the exporter's other series have it."""
    return f'label_join(dracaena_gpu_allocation_info{selector}, "UUID", "", "uuid")'


def _board(name: str, variables: Sequence[Builder[model.VariableModel]], *panels: Builder[model.Panel]) -> (
    dashboard.Dashboard
):  # fmt: skip
    """Return a board with its links to the others; panels stand in rows, in their order."""
    made = (
        dashboard.Dashboard(f"Dracaena: {BOARDS[name]}")
        .uid(f"dracaena-{name}")
        .tags(["gpu", "dra", "dracaena"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        made.with_variable(variable)
    for other in (each for each in BOARDS if each != name):
        made.link(_link(other))
    for number, panel in enumerate(panels, start=1):
        made.with_panel(_Numbered(panel, number))
    return made


class _Numbered(Builder[model.Panel]):
    """A panel with its number on the board."""

    def __init__(self, panel: Builder[model.Panel], number: int) -> None:
        self._panel, self._number = panel, number

    def build(self) -> model.Panel:
        """Return it."""
        made = self._panel.build()
        made.id_val = self._number
        return made


def _link(name: str) -> dashboard.DashboardLink:
    """Return a link to a board that takes the time and what is chosen with it."""
    return (
        dashboard.DashboardLink(BOARDS[name])
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/dracaena-{name}")
        .keep_time(True)
        .include_vars(True)
    )


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable of which the viewer chooses any number of values, at first all."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(model.VariableOption(text="All", value="$__all"))
    )


def _stat(title: str, description: str, query: str, steps: Steps, unit: str = "short") -> stat.Panel:
    """Return one number of now, coloured by its thresholds; a sixth of the width."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(_SOURCE)
        .height(4)
        .span(4)
        .unit(unit)
        .thresholds(_thresholds(steps))
        .color_mode(shown.BigValueColorMode.BACKGROUND)
        .graph_mode(shown.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query(query, "A").instant().legend_format(""))
    )


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [model.Threshold(value=value, color=colour) for colour, value in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _lines(title: str, description: str, queries: Mapping[str, str], unit: str = "short") -> timeseries.Panel:
    """Return lines over time by legend → query; half of the width."""
    made = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(_SOURCE)
        .height(8)
        .span(12)
        .unit(unit)
        .min(0)
        .fill_opacity(10)
    )
    for ref, (legend, query) in zip("ABCD", queries.items(), strict=False):
        made.with_target(_query(query, ref).range().legend_format(legend))
    return made


def _table(title: str, description: str, label: str, queries: Mapping[str, str]) -> table.Panel:
    """Return a table with a row for each value of a label, and a column for each query; half of the width."""
    made = _rows(title, description, [label]).height(8).span(12)
    for ref, query in zip("ABCD", queries.values(), strict=False):
        made.with_target(_query(query, ref).instant().format(PromQueryFormat.TABLE).legend_format(""))
    made.with_transformation(
        model.DataTransformerConfig(id_val="joinByField", options={"byField": label, "mode": "outer"})
    )
    names = {f"Value #{ref}": name for ref, name in zip("ABCD", queries, strict=False)}
    return made.with_transformation(_organized([label, *names], names))


def _who_has(selector: str, leads: str) -> table.Panel:
    """Return the table of who has which device."""
    columns = ["namespace", "pod", "container", "node", "uuid", "parent_uuid", "share_id"]
    words = {"uuid": "device", "parent_uuid": "MIG device of", "share_id": "share"}
    query = f"max by ({', '.join(columns)}) (dracaena_gpu_allocation_info{selector})"
    return (
        _rows("Who has which GPU", f"A row for each container and each of its devices. {leads}", columns)
        .height(10)
        .span(24)
        .with_target(_query(query, "A").instant().format(PromQueryFormat.TABLE).legend_format(""))
        .with_transformation(_organized(columns, words, ["Value"]))
    )


def _rows(title: str, description: str, columns: Sequence[str]) -> table.Panel:
    """Return a table whose nodes, namespaces and pods lead to their boards."""
    made = table.Panel().title(title).description(description).datasource(_SOURCE).unit("short").filterable(True)
    for column, link in _leading(columns):
        made.override_by_name(
            column, [model.DynamicConfigValue("links", [{"title": f"Board of {column}", "url": link}])]
        )
    return made


def _leading(columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((column, _LINKS[column]) for column in columns if column in _LINKS)


def _organized(
    order: Sequence[str], words: Mapping[str, str], left_out: Sequence[str] = ()
) -> model.DataTransformerConfig:
    """Return the order and the words of columns. Times are left out: a join numbers those of its queries."""
    times = ("Time", "Time 1", "Time 2", "Time 3")
    options = {
        "excludeByName": dict.fromkeys((*times, *left_out), True),
        "indexByName": {name: number for number, name in enumerate(order)},
        "renameByName": dict(words),
    }
    return model.DataTransformerConfig(id_val="organize", options=options)


def _query(expression: str, ref: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).ref_id(ref)


if __name__ == "__main__":
    sys.exit(main())
