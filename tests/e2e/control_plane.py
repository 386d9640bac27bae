"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and an identity for each who talks to them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from e2e.api import Api
from e2e.processes import Program
from e2e.waiting import eventually

ADDRESS = "127.0.0.1"

_FAST = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""More requests a second than two cores can serve: nothing waits for its turn, as 20 a second by default would."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the programs listen. The defaults are their own: the run has a network namespace for itself."""

    api: int = 6443
    etcd: int = 2379
    etcd_peer: int = 2380
    controller_manager: int = 10257
    scheduler: int = 10259


START_S = 90.0
"""kube-apiserver is ready after 5 s on two free cores; the rest is for a loaded machine."""


SERVER_STOP_S = 3.0
"""kube-apiserver would wait up to a minute for open watches; what it has said is in etcd."""


NO_FLAGS: Mapping[str, Sequence[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody with a token: user name and groups are what RBAC and the node authorizer look at."""

    user: str
    groups: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The user name as a file name."""
        return self.user.replace(":", "-")

    @property
    def token(self) -> str:
        """No secret: it is good for a server that only this run can reach."""
        return f"token-of-{self.file_name}"


ADMIN = Identity("admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")
SCHEDULER = Identity("system:kube-scheduler")
DRACAENA_CONTROLLER = Identity("dracaena-controller")
DRACAENA_PLUGIN = Identity("dracaena-kubelet-plugin")


def node_identity(name: str) -> Identity:
    """The identity of a kubelet."""
    return Identity(f"system:node:{name}", ("system:nodes",))


def is_written(certificate: Path) -> bool:
    """Whether a certificate is there: kube-apiserver makes an empty file, and fills it with one write."""
    return certificate.exists() and certificate.stat().st_size > 0


class ControlPlane:
    """Kubernetes without nodes. Its files are below `root`.

    A second one in the same run needs other `ports`, and a `suffix` for the names of its logs. With `made_up_nodes`
    nobody waits for kubelets: Node objects stay as they were made. `more_flags` are added to a program's command line,
    by the program's name.
    """

    def __init__(
        self,
        root: Path,
        binaries: Path,
        logs: Path,
        identities: Sequence[Identity],
        *,
        ports: Ports = Ports(),
        suffix: str = "",
        made_up_nodes: bool = False,
        more_flags: Mapping[str, Sequence[str]] = NO_FLAGS,
    ) -> None:
        self.url = f"https://{ADDRESS}:{ports.api}"
        self._ports = ports
        self._made_up_nodes = made_up_nodes
        self._more_flags = more_flags
        self.kubectl_path = binaries / "kubectl"
        self._root = root
        self._binaries = binaries
        self._identities = (ADMIN, CONTROLLER_MANAGER, SCHEDULER, *identities)
        root.mkdir()
        self.etcd = Program(f"etcd{suffix}", self._etcd_command(), logs)
        self.apiserver = Program(f"kube-apiserver{suffix}", self._apiserver_command(), logs, stop_s=SERVER_STOP_S)
        self.controller_manager = Program(f"kube-controller-manager{suffix}", self._controller_manager_command(), logs)
        self.scheduler = Program(f"kube-scheduler{suffix}", self._scheduler_command(), logs)
        self.programs = (self.etcd, self.apiserver, self.controller_manager, self.scheduler)

    @property
    def authority(self) -> Path:
        """The certificate that the server's own is checked against; the server makes both at its first start."""
        return self._root / "certificates" / "apiserver.crt"

    def start(self) -> None:
        """Start everything and wait until the server and both its clients are at work."""
        self.start_server()
        self.controller_manager.start()
        self.scheduler.start()
        eventually(
            lambda: self.api().find("/api/v1/namespaces/default/serviceaccounts/default"),
            "kube-controller-manager makes the default service account",
            within_s=START_S,
            programs=self.programs,
        )

    def start_server(self) -> None:
        """Start etcd and kube-apiserver alone, and wait until the server is ready."""
        self._write_files()
        self.etcd.start()
        self.apiserver.start()
        self.wait_ready()

    def stop(self) -> None:
        """End everything, clients first."""
        for program in reversed(self.programs):
            program.stop()

    def wait_ready(self) -> None:
        """Wait until the server says that it is ready."""
        up = (self.etcd, self.apiserver)
        certified = lambda: is_written(self.authority)  # noqa: E731
        eventually(certified, "kube-apiserver makes its certificate", within_s=START_S, programs=up)
        eventually(
            lambda: self.api().send("GET", "/readyz").status == 200,
            "kube-apiserver is ready",
            within_s=START_S,
            programs=up,
        )

    def restart_clients(self) -> None:
        """Let kube-controller-manager and kube-scheduler see a server that was started again: a watch that broke comes
        back only after a back-off, which was more than a minute after four such starts.
        """
        self.wait_ready()
        for program in (self.controller_manager, self.scheduler):
            program.stop()
            program.start()

    def api(self, identity: Identity = ADMIN) -> Api:
        """Talk to the server as somebody."""
        return Api(self.url, self.authority, identity.token)

    def kubeconfig(self, identity: Identity) -> Path:
        """Return the path of somebody's kubeconfig."""
        return self._root / f"{identity.file_name}.kubeconfig"

    def kubectl(self, *arguments: str | Path, check: bool = True) -> str:
        """Run kubectl as the administrator and return what it printed."""
        done = subprocess.run(
            [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig(ADMIN)), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(self._root), "PATH": "/usr/bin:/bin"},
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout + done.stderr

    def _write_files(self) -> None:
        lines = [
            f'{identity.token},{identity.user},{number},"{",".join(identity.groups)}"\n'
            for number, identity in enumerate(self._identities)
        ]
        self._file("tokens.csv").write_text("".join(lines), encoding="utf-8")
        key = subprocess.run([self._binaries / "probe", "new-key"], capture_output=True, check=True).stdout
        self._file("service-accounts.key").write_bytes(key)
        for identity in self._identities:
            self.kubeconfig(identity).write_text(json.dumps(self._kubeconfig(identity)), encoding="utf-8")

    def _kubeconfig(self, identity: Identity) -> dict[str, object]:
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": identity.user, "user": {"token": identity.token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": identity.user}}],
            "current-context": "e2e",
        }

    @property
    def _etcd_url(self) -> str:
        return f"http://{ADDRESS}:{self._ports.etcd}"

    def _file(self, name: str) -> Path:
        return self._root / name

    def _etcd_command(self) -> list[str | Path]:
        # No fsync: the folder is in memory, and nothing of it is wanted after the run.
        return [
            self._binaries / "etcd",
            "--data-dir",
            self._file("etcd"),
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls=http://{ADDRESS}:{self._ports.etcd_peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            *self._more_flags.get("etcd", ()),
        ]

    def _apiserver_command(self) -> list[str | Path]:
        return [
            self._binaries / "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={self._ports.api}",
            f"--advertise-address={ADDRESS}",
            "--endpoint-reconciler-type=none",  # nobody reaches the server through the kubernetes service
            f"--cert-dir={self.authority.parent}",
            f"--token-auth-file={self._file('tokens.csv')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._file('service-accounts.key')}",
            f"--service-account-signing-key-file={self._file('service-accounts.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--shutdown-delay-duration=0s",
            *self._more_flags.get("kube-apiserver", ()),
        ]

    def _controller_manager_command(self) -> list[str | Path]:
        return [
            self._binaries / "kube-controller-manager",
            *(["--controllers=*,-node-lifecycle-controller", *_FAST] if self._made_up_nodes else []),
            f"--kubeconfig={self.kubeconfig(CONTROLLER_MANAGER)}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={self._ports.controller_manager}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._file('service-accounts.key')}",
            f"--root-ca-file={self.authority}",
            f"--flex-volume-plugin-dir={self._file('volume-plugins')}",
            *self._more_flags.get("kube-controller-manager", ()),
        ]

    def _scheduler_command(self) -> list[str | Path]:
        return [
            self._binaries / "kube-scheduler",
            f"--kubeconfig={self.kubeconfig(SCHEDULER)}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={self._ports.scheduler}",
            *(_FAST if self._made_up_nodes else []),
            "--leader-elect=false",
            "--v=2",
            *self._more_flags.get("kube-scheduler", ()),
        ]
