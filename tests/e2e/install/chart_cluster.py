"""A cluster on which pods reach the API server, as those of the chart must: kube-proxy, ServiceAccounts, an image."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e import isolation
from e2e.api import Api
from e2e.cluster import NODE_READY_S
from e2e.control_plane import ADMIN, ControlPlane, Identity, node_identity
from e2e.gpus import StandInGpus
from e2e.install.helm import CHART, WAIT, Helm
from e2e.install.image import IMAGE
from e2e.installation import DRIVER
from e2e.node import CDI_ROOT, Node
from e2e.processes import Program
from e2e.waiting import eventually

NODE_NAME = "gpu-node"
NAMESPACE = "dracaena"
RELEASE = "dracaena"

KUBE_PROXY = Identity("system:kube-proxy")

EXAMPLE_IMAGE = "docker.io/example/gpu-program:1.0"
"""Name of the image in the manifests below deploy/examples: they run as they are, with the probe inside."""

AUDITED = tuple(f"system:serviceaccount:{NAMESPACE}:{RELEASE}-{part}" for part in ("controller", "kubelet-plugin"))
"""Users whose requests are in the audit log."""

RBAC = "rbac.authorization.k8s.io"

TRYING = "e2e-trying"
"""User agent of tests that try with a token of ours what it may do: not what our programs ask for."""

COMMAND = "dracaena-cli"
"""User agent of our command, which docs/command.md has run in the controller's pod: more than the controller asks."""

PUBLISHED_S = 120.0
"""From the plugin's start until its devices are there: 3 s on a free machine."""

CONTROLLER_S = 90.0
"""Until the controller's pods are gone or there, and until a changed policy counts."""

ACCOUNT_S = 60.0
"""kube-controller-manager makes the ServiceAccount of a namespace at once, when it has a core."""

PLUGIN_GONE_S = 60.0
"""From the plugin's end until kubelet deletes its slices: 30 s, and the watch."""

PODS_OF = {"controller": 2, "kubelet-plugin": 1}
"""How many pods each part has."""

SETTLED_S = 120.0
"""From an install or upgrade until only the new pods are there: those of before have 30 s to end, and kubelet may see
the change late after a restart of the API server."""


class NodeWithRoutes(Node):
    """A node whose pods reach the API server, and that has the image of the chart."""

    def __init__(self, root: Path, binaries: Path, logs: Path, kubeconfig: Path, archive: Path) -> None:
        super().__init__(NODE_NAME, root, binaries, logs, kubeconfig, [EXAMPLE_IMAGE])
        self._archive = archive

    def start(self) -> None:
        """Bring the image too."""
        super().start()
        done = self._ctr("--namespace", "k8s.io", "images", "import", str(self._archive))
        if done.returncode != 0:
            raise AssertionError(f"containerd does not take the image: {done.stderr.strip()}")

    def _pod_network(self) -> dict[str, object]:
        network: Any = super()._pod_network()
        network["plugins"][0]["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}]
        return dict(network)


class ChartCluster:
    """Kubernetes with one Ready node with stand-in GPUs inside a `with` block; nothing of ours is installed."""

    def __init__(self, root: Path, binaries: Path, logs: Path, archive: Path) -> None:
        kubelet = node_identity(NODE_NAME)
        self._root = root
        self._binaries = binaries
        self.audit_log = root / "audit.log"
        self.control_plane = ControlPlane(
            root / "control-plane",
            binaries,
            logs,
            (kubelet, KUBE_PROXY),
            more_flags={
                "kube-apiserver": (
                    f"--bind-address={isolation.NODE_ADDRESS}",
                    f"--advertise-address={isolation.NODE_ADDRESS}",
                    "--endpoint-reconciler-type=lease",
                    "--allow-privileged=true",
                    f"--audit-policy-file={root / 'audit-policy.json'}",
                    f"--audit-log-path={self.audit_log}",
                )
            },
        )
        self.control_plane.url = self.control_plane.url.replace("127.0.0.1", isolation.NODE_ADDRESS)
        kubeconfig = self.control_plane.kubeconfig
        self.node = NodeWithRoutes(root / NODE_NAME, binaries, logs, kubeconfig(kubelet), archive)
        self.proxy = Program("kube-proxy", [binaries / "kube-proxy", f"--config={root / 'kube-proxy.json'}"], logs)
        self.gpus = StandInGpus(root / "gpus")
        self.helm = Helm(binaries / "helm", kubeconfig(ADMIN), root / "helm")
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        self._root.joinpath("audit-policy.json").write_text(json.dumps(_AUDIT_POLICY), encoding="utf-8")
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self.control_plane.kubeconfig(KUBE_PROXY))},
            "clusterCIDR": "10.98.0.0/24",
            "hostnameOverride": NODE_NAME,
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
        self._root.joinpath("kube-proxy.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            self._ends.callback(self.control_plane.stop)
            self.control_plane.start()
            self._ends.callback(self.node.stop)
            self.node.start()
            self._ends.callback(self.proxy.stop)
            self.proxy.start()
            self.gpus.make()
            eventually(self._node_is_ready, "the node is Ready", within_s=NODE_READY_S, programs=self.programs)
            # As the GPU operator or node-feature-discovery would.
            self.kubectl("label", "node", NODE_NAME, "nvidia.com/gpu.present=true")
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs that are not in pods."""
        return (*self.node.programs, self.proxy, *self.control_plane.programs)

    @property
    def api(self) -> Api:
        """The API as its administrator sees it."""
        return self.control_plane.api()

    @property
    def installation(self) -> Self:
        """What e2e.gpu_pods looks at: slices, CDI specs, podlist."""
        return self

    def kubectl(self, *arguments: str | Path, check: bool = True) -> str:
        """Run kubectl as the administrator."""
        return self.control_plane.kubectl(*arguments, check=check)

    def values(self, **more: Any) -> dict[str, Any]:
        """Return the chart's values for a node that plays a recorded machine; `more` is merged into them."""
        machine = {"name": "machine", "hostPath": {"path": str(self.gpus.machine.parent), "type": "Directory"}}
        repository, _, tag = IMAGE.rpartition(":")
        own = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "logLevel": "debug",
            # As on a large cluster, so that each pod has the controller use its right to nominate. Binds are short,
            # and kube-scheduler has no reason to try a pod again that only a cordon keeps out: time has to tell then.
            "controller": {"settings": {"nominate-above-nodes": 0, "longest-bind-s": 20, "unused-template-s": 10}},
            "kubeletPlugin": {
                "settings": {"machine": "/recorded/machine.json"},
                "hostPaths": {
                    "kubelet": str(self.node.kubelet_root),
                    "driverRoot": str(self.gpus.driver_root),
                    "devRoot": str(self.gpus.dev_root),
                },
                "pod": {
                    "volumes": [machine],
                    "volumeMounts": [{"name": "machine", "mountPath": "/recorded", "readOnly": True}],
                },
            },
        }
        return merged(own, more)

    def is_installed(self) -> bool:
        """Whether the release is there."""
        return RELEASE in self.helm.do("list", "--namespace", NAMESPACE, "--short").split()

    def ensure_uninstalled(self) -> None:
        """Take the release away if it is there."""
        if self.is_installed():
            self.helm.do("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")

    def ensure_installed(self) -> None:
        """Install the chart where it is not, and wait until both parts are ready and the devices published."""
        if not self.is_installed():
            self.helm.do(
                "install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace", "--wait", WAIT,
                values=self.values(),
            )  # fmt: skip
        self.wait_settled()
        self.wait_published()

    def wait_settled(self) -> None:
        """Wait until each part has its own pods alone, all ready. helm waits for the new ones only; those of before
        still lead, publish and answer until they have ended.
        """
        eventually(self._is_settled, "each part has its own pods alone", within_s=SETTLED_S, programs=self.programs)

    def remove_pods(self) -> None:
        """Remove what a failed test has left in the namespace default, so that one failure stays one failure."""
        if self.api.items("/api/v1/namespaces/default/pods"):
            kinds = "deployments,jobs,pods,resourceclaims,resourceclaimtemplates"
            arguments = ("--all", "--namespace=default", "--grace-period=1", "--timeout=60s")
            self.kubectl("delete", kinds, *arguments, check=False)

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Make a namespace in which pods can be made: the API server refuses them while there is no ServiceAccount."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        what = f"kube-controller-manager makes the ServiceAccount of {name}"
        eventually(lambda: self.api.find(account), what, within_s=ACCOUNT_S, programs=self.programs)

    def wait_published(self) -> None:
        """Wait until the devices are there."""

        def devices() -> list[Any]:
            return [device for one in self.slices() for device in one["spec"].get("devices", ())]

        eventually(devices, "the devices are published", within_s=PUBLISHED_S, programs=self.programs)

    def values_file(self) -> Path:
        """Return a file with the values for this node."""
        path = self._root / "values.json"
        path.write_text(json.dumps(self.values()), encoding="utf-8")
        return path

    def shell(self) -> dict[str, str]:
        """Return the environment of an admin's shell, with helm and kubectl on PATH."""
        return self.helm.environment | {"PATH": f"{self._binaries}:/usr/bin:/bin"}

    def upgrade(self, **more: Any) -> str:
        """Upgrade the release to these values, wait until its pods alone are there and return what helm said."""
        said = self.helm.do(
            "upgrade", RELEASE, CHART, "--namespace", NAMESPACE, "--wait", WAIT, values=self.values(**more)
        )
        self.wait_settled()
        return said

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """Have no controller inside the block; its pods are gone when the block begins."""
        deployment = ("--namespace", NAMESPACE, f"deployment/{RELEASE}-controller")
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=controller"
        self.kubectl("scale", *deployment, "--replicas=0")
        try:
            eventually(lambda: not self.api.items(pods), "no controller runs", within_s=CONTROLLER_S)
            yield
        finally:
            self.kubectl("scale", *deployment, "--replicas=2")

    def slices(self) -> list[Any]:
        """Return the ResourceSlices of our driver."""
        found = self.api.items("/apis/resource.k8s.io/v1/resourceslices")
        return [one for one in found if one["spec"]["driver"] == DRIVER]

    def podlist(self) -> list[dict[str, Any]]:
        """Return what podlist.json holds, nothing while it is not there."""
        path = self.node.kubelet_root / "pod-resources" / "podlist.json"
        entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return entries

    @property
    def plugin_data(self) -> Path:
        """The plugin's own folder below kubelet's."""
        return self.node.kubelet_root / "plugins" / DRIVER

    def cdi_specs(self) -> list[Path]:
        """Return our CDI specs."""
        return sorted(CDI_ROOT.glob(f"{DRIVER}-claim_*.json"))

    def logs(self, part: str) -> str:
        """Return what the pods of a part log now."""
        selector = f"--selector=app.kubernetes.io/component={part}"
        return self.kubectl("--namespace", NAMESPACE, "logs", selector, "--tail=-1", "--prefix", check=False)

    def audited(self) -> Iterator[Any]:
        """Yield the finished requests of our two ServiceAccounts, but for those of tests and of the command."""
        for event in self._audit_events():
            if event["user"].get("username") in AUDITED and event.get("userAgent") not in (TRYING, COMMAND):
                yield event

    def written_rights(self) -> Iterator[Any]:
        """Yield the successful writes of anybody to roles and their bindings."""
        for event in self._audit_events():
            is_about_rights = event.get("objectRef", {}).get("apiGroup") == RBAC
            if is_about_rights and event.get("responseStatus", {}).get("code") in (200, 201):
                yield event

    def _audit_events(self) -> Iterator[Any]:
        whole, _, _ = self.audit_log.read_bytes().rpartition(b"\n")  # a line may be written just now
        return map(json.loads, whole.splitlines())

    def files_in_image(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container of the image, outside of any pod."""
        arguments = ("--namespace", "k8s.io", "run", "--rm", IMAGE, "image-test", *command)
        return self.node._ctr(*arguments)

    def _is_settled(self) -> bool:
        """Whether the pods of both parts are ready, and none of before is left."""
        pods = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
        parts = [pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") for pod in pods]
        ours = [pod for pod, part in zip(pods, parts, strict=True) if part in PODS_OF]
        counts = {part: parts.count(part) for part in PODS_OF}
        return counts == PODS_OF and all(_stays_ready(pod) for pod in ours)

    def _node_is_ready(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{NODE_NAME}")
        if node is None or node["spec"].get("taints"):
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def _stays_ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", ())
    is_ready = any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, maps within maps too; where both say something the second counts."""
    result = dict(first)
    for key, value in second.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # What a write to a claim's status changes decides which further rights are asked for.
        {
            "level": "Request",
            "users": list(AUDITED),
            "resources": [{"group": "resource.k8s.io", "resources": ["resourceclaims/status"]}],
        },
        {"level": "Metadata", "users": list(AUDITED)},
        # When `helm uninstall` takes their rights away, and when they are back.
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"], "resources": [{"group": RBAC}]},
        {"level": "None"},
    ],
}
