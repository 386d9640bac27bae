"""etcd and kube-apiserver alone, beside the cluster: nobody writes but the test."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.api import Api
from e2e.control_plane import ADDRESS, ADMIN, SERVER_STOP_S, START_S, is_written
from e2e.processes import Program
from e2e.waiting import eventually
from transcripts.etcd import compact, write

PORT = 16443
ETCD_PORT = 12379
ETCD_PEER_PORT = 12380

OLD_WRITES = 5
"""Writes before the server's first start, as after a restart: then version 1 is older than all that it remembers."""


class BareApiServer:
    """A kube-apiserver inside a `with` block, with every default but `flags` and no ServiceAccount admission."""

    def __init__(self, root: Path, binaries: Path, logs: Path, *flags: str) -> None:
        self.url = f"https://{ADDRESS}:{PORT}"
        self.token = ADMIN.token
        self.authority = root / "certificates" / "apiserver.crt"
        self._root = root
        self._etcd_url = f"http://{ADDRESS}:{ETCD_PORT}"
        self._etcd = Program("etcd-alone", self._etcd_command(binaries), logs)
        command = [*self._apiserver_command(binaries), *flags]
        self._apiserver = Program("kube-apiserver-alone", command, logs, stop_s=SERVER_STOP_S)
        self._programs = (self._etcd, self._apiserver)
        self._binaries = binaries
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def forget_history(self) -> None:
        """Let etcd forget every version before the present one."""
        compact(self._etcd_url)

    def _start(self) -> None:
        for program in self._programs:
            self._ends.callback(program.stop)
        self._write_files()
        self._etcd.start()
        eventually(self._etcd_takes_writes, "etcd is ready", within_s=START_S, programs=(self._etcd,))
        self._apiserver.start()
        eventually(self._is_ready, "kube-apiserver is ready", within_s=START_S, programs=self._programs)

    def _etcd_takes_writes(self) -> bool:
        try:
            for _ in range(OLD_WRITES):
                write(self._etcd_url)
        except OSError:  # also of a connection that is closed before the answer
            return False
        return True

    def _is_ready(self) -> bool:
        if not is_written(self.authority):
            return False
        return Api(self.url, self.authority, self.token).send("GET", "/readyz").status == 200

    def _write_files(self) -> None:
        tokens = f'{ADMIN.token},{ADMIN.user},0,"{",".join(ADMIN.groups)}"\n'
        (self._root / "tokens.csv").write_text(tokens, encoding="utf-8")
        key = subprocess.run([self._binaries / "probe", "new-key"], capture_output=True, check=True).stdout
        (self._root / "service-accounts.key").write_bytes(key)

    def _etcd_command(self, binaries: Path) -> list[str | Path]:
        return [
            binaries / "etcd",
            "--data-dir",
            self._root / "etcd",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls=http://{ADDRESS}:{ETCD_PEER_PORT}",
            "--unsafe-no-fsync",  # nothing of it is wanted after the run
            "--log-level=warn",
        ]

    def _apiserver_command(self, binaries: Path) -> list[str | Path]:
        key = self._root / "service-accounts.key"
        return [
            binaries / "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={PORT}",
            f"--advertise-address={ADDRESS}",
            "--endpoint-reconciler-type=none",  # nobody reaches the server through the kubernetes service
            f"--cert-dir={self.authority.parent}",
            f"--token-auth-file={self._root / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--shutdown-delay-duration=0s",
        ]
