"""One real node: containerd with runc and CNI, and kubelet. It can lose each of them, and be restarted as a whole."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from e2e import isolation
from e2e.images import PROBE_IMAGE, write_image
from e2e.prerequisites import cni_folder
from e2e.processes import Program
from e2e.waiting import eventually

RUNTIME_STATE = Path("/run/containerd")
RUNTIME_SOCKET = RUNTIME_STATE / "containerd.sock"
CDI_ROOT = Path("/var/run/cdi")
"""Where containerd and our plugin look by default."""

NETWORK_NAMESPACES = Path("/run/netns")
CGROUPS = Path("/sys/fs/cgroup")

START_S = 60.0
"""containerd answers after 1 s on a free machine, kubelet after 3 s; the rest is for a loaded one."""

GUEST_HANDLER = "guest"
"""Of RuntimeClasses of the tests that stand for virtual machines: runc under another name."""

_CONTAINERD_CONFIG = """\
version = 3
root = "{root}/containerd"
state = "{state}"
oom_score = 0

[grpc]
  address = "{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{cdi_root}"]
  disable_apparmor = true
  # Some machines forbid negative values.
  restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{cni_bin}"]
  conf_dir = "{root}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{guest}]
  runtime_type = "io.containerd.runc.v2"
"""


class Node:
    """A node with its own folder. `images` are further names under which the probe image is known."""

    def __init__(
        self, name: str, root: Path, binaries: Path, logs: Path, kubeconfig: Path, images: Sequence[str]
    ) -> None:
        self.name = name
        self.kubelet_root = root / "kubelet"
        self._root = root
        self._binaries = binaries
        self._images = (PROBE_IMAGE, *images)
        self._restarts = 0
        path = {"PATH": f"{binaries}:{os.environ['PATH']}"}
        self.containerd = Program(
            "containerd", [binaries / "containerd", "--config", root / "containerd.toml"], logs, environment=path
        )
        self.kubelet = Program("kubelet", self._kubelet_command(kubeconfig), logs, environment=path)
        self.programs = (self.containerd, self.kubelet)

    def start(self) -> None:
        """Write the configuration, bring the image and start both programs."""
        self._write_files()
        self.start_containerd()
        self._import_images()
        self.kubelet.start()

    def start_containerd(self) -> None:
        """Start the container runtime and wait until it answers."""
        self.containerd.start()
        eventually(
            lambda: self._ctr("version").returncode == 0,
            "containerd answers",
            within_s=START_S,
            programs=(self.containerd,),
        )

    def stop(self) -> None:
        """End both programs and all containers."""
        self.kubelet.stop()
        left = _containers()
        self._end_containers()
        self.containerd.stop()
        _remove_cgroups(left)

    def power_off(self) -> None:
        """Lose everything that a machine loses at once: programs, containers, mounts, what is in memory."""
        self.kubelet.kill()
        self.containerd.kill()
        lost = _containers()
        self._end_containers()
        _unmount_below(RUNTIME_STATE, NETWORK_NAMESPACES, self.kubelet_root)
        for folder in (RUNTIME_STATE, NETWORK_NAMESPACES, CDI_ROOT):
            shutil.rmtree(folder, ignore_errors=True)
        _remove_cgroups(lost)

    def power_on(self) -> None:
        """Start again in a new boot."""
        self._restarts += 1
        isolation.set_boot_id(str(uuid.UUID(int=1 + self._restarts, version=4)))  # the run began in boot 1
        self.start_containerd()
        self.kubelet.start()

    def running_containers(self) -> int:
        """Count the processes that run in containers."""
        return len(list(_container_processes()))

    def _write_files(self) -> None:
        for folder in (self._root, self.kubelet_root, self._root / "cni", CDI_ROOT):
            folder.mkdir(parents=True, exist_ok=True)
        config = _CONTAINERD_CONFIG.format(
            root=self._root,
            state=RUNTIME_STATE,
            socket=RUNTIME_SOCKET,
            sandbox=PROBE_IMAGE,
            cdi_root=CDI_ROOT,
            cni_bin=cni_folder(),
            guest=GUEST_HANDLER,
        )
        (self._root / "containerd.toml").write_text(config, encoding="utf-8")
        (self._root / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()), encoding="utf-8")
        (self._root / "kubelet.json").write_text(json.dumps(self._kubelet_config()), encoding="utf-8")

    def _pod_network(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": "10.98.0.0/24"}]],
            "dataDir": str(self._root / "addresses"),
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}

    def _kubelet_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": isolation.NODE_ADDRESS,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
            # Cgroups as they are on a machine without systemd, version 1 or 2.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "resolvConf": "",
            # A prepare that failed is tried again at the next sync. The default of 1 minute makes these tests slow.
            "syncFrequency": "10s",
            "podLogsDir": str(self._root / "pod-logs"),
            "volumePluginDir": str(self._root / "volume-plugins"),
        }

    def _kubelet_command(self, kubeconfig: Path) -> list[str | Path]:
        return [
            self._binaries / "kubelet",
            f"--config={self._root / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.kubelet_root}",
            f"--cert-dir={self.kubelet_root / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={isolation.NODE_ADDRESS}",
            "--v=3",
        ]

    def _import_images(self) -> None:
        archive = self._root / "probe.tar"
        write_image(self._binaries / "probe", self._images, archive)
        done = self._ctr("--namespace", "k8s.io", "images", "import", str(archive))
        if done.returncode != 0:
            raise AssertionError(f"containerd does not take the image: {done.stderr.strip()}")

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._binaries / "ctr"), "--address", str(RUNTIME_SOCKET), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _end_containers(self) -> None:
        """Kill all shims, then what they watched, also what a shim was just starting. Only this run's processes can be
        seen from in here."""

        def look() -> bool:
            for pid in (*_shims(), *_container_processes()):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            return not list(_container_processes())

        eventually(look, "all containers end", within_s=START_S)


def _processes() -> Iterator[Path]:
    return (path for path in sorted(Path("/proc").iterdir()) if path.name.isdigit())


def _shims() -> Iterator[int]:
    for process in _processes():
        with suppress(OSError):
            if (process / "comm").read_text(encoding="ascii").startswith("containerd-shim"):
                yield int(process.name)


def _container_processes() -> Iterator[int]:
    """Find the processes in a process namespace other than ours: only containers have one."""
    own = Path("/proc/self/ns/pid").readlink()
    for process in _processes():
        with suppress(OSError):
            if (process / "ns" / "pid").readlink() != own:
                yield int(process.name)


def _unmount_below(*roots: Path) -> None:
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    targets = [Path(line.split()[4]) for line in table]
    for target in reversed(targets):
        if any(root in target.parents for root in roots):
            subprocess.run(["umount", "--lazy", str(target)], check=False, capture_output=True)


def _containers() -> list[str]:
    """Return the ids of the containers that this node's runtime holds: it has a folder for each."""
    return [path.name for path in RUNTIME_STATE.glob("io.containerd.runtime.v2.task/k8s.io/*")]


def _remove_cgroups(containers: Sequence[str]) -> None:
    """Remove what lost containers leave behind. Others' stay, also empty ones: another node on this machine may have
    made one for a container that is about to come into it."""
    for top in _container_cgroups():
        for container in containers:
            remove_empty_folders(top / container)


def remove_empty_cgroups() -> None:
    """Remove what runs that were killed have left behind. The kernel keeps every cgroup that is in use."""
    for top in _container_cgroups():
        remove_empty_folders(top)


def _container_cgroups() -> Iterator[Path]:
    """Return the folders of all containers: one in version 2, one for each controller in version 1."""
    return itertools.chain(CGROUPS.glob("k8s.io"), CGROUPS.glob("*/k8s.io"))


def remove_empty_folders(top: Path) -> None:
    """Remove a tree of cgroups as far as it is empty, whatever others remove of it meanwhile."""
    for folder, _, _ in os.walk(top, topdown=False):  # passes over what is gone
        with suppress(OSError):
            Path(folder).rmdir()
