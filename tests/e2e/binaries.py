"""The programs that are built from source with Go, each once for a version, into a cache outside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.processes import end_group, end_with_parent, uninterrupted

SOURCES = Path(__file__).parent / "programs"
"""One Go module a folder; its go.mod and go.sum say what is built, to the last hash."""


@dataclass(frozen=True, slots=True)
class Build:
    """One call of `go build`."""

    folder: str
    """Below SOURCES."""
    packages: tuple[str, ...]
    takes: str
    """How long on two cores with nothing cached, for the person who waits."""
    version_variables: tuple[str, ...] = ()
    """Linker variables; `{version}` stands for the version of the module in go.mod."""
    module: str = ""
    """Whose version is meant; empty: a program of our own."""
    tags: tuple[str, ...] = field(default=(), repr=False)
    """Build tags. In _key() by themselves, so that what is built without any keeps its key."""

    @property
    def names(self) -> tuple[str, ...]:
        """The programs that come out."""
        return tuple(self.folder if package == "." else package.rpartition("/")[2] for package in self.packages)


_KUBERNETES = "k8s.io/kubernetes"
_KUBERNETES_VERSION = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor=1",
    "k8s.io/component-base/version.gitMinor={minor}",
)
_CONTAINERD = "github.com/containerd/containerd/v2"

_HELM = "helm.sh/helm/v4"
_PROMETHEUS = "github.com/prometheus/prometheus"
_ETCD = "go.etcd.io/etcd/server/v3"

_KUEUE = "sigs.k8s.io/kueue"

KUEUE = Build("kueue", (f"{_KUEUE}/cmd/kueue",), "4 minutes", (f"{_KUEUE}/pkg/version.GitVersion={{version}}",), _KUEUE)
"""Only where it is asked for: it takes as long as Kubernetes."""

_FOR_ALL = (
    Build("probe", (".",), "seconds"),
    Build("etcd", (".",), "1 minute", module=_ETCD),
    Build("helm", (f"{_HELM}/cmd/helm",), "3 minutes", (f"{_HELM}/internal/version.version={{version}}",), _HELM),
    Build(
        "containerd",
        tuple(f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        "1 minute",
        (f"{_CONTAINERD}/version.Version={{version}}",),
        _CONTAINERD,
    ),
    # Without the service discovery of every cloud, and without the pages of its UI.
    Build(
        "prometheus",
        tuple(f"{_PROMETHEUS}/cmd/{name}" for name in ("prometheus", "promtool")),
        "2 minutes",
        module=_PROMETHEUS,
        tags=("remove_all_sd",),
    ),
)

VERSIONS = ("1.37", "1.36")
"""Of Kubernetes, those that the tests run on; the first where nothing else is said."""

VARIABLE = "KUBERNETES"
"""Environment variable that names one of them."""


# Read-only: what is built is what go.sum says. No paths and no git state get into the programs. Without inlining the
# compiler needs a quarter less time; what the programs do is the same, and here they mostly wait.
_GO_BUILD = ("go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-l")

# Without cgo no C compiler is needed and all programs share what is compiled. kubelet's release builds have cgo, but
# nothing that the tests look at depends on it.
_GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}


GO_STOP_S = 10.0
"""From Ctrl-C until go is killed: it ends at once, but for the folder that it removes."""


class BuildError(Exception):
    """`go build` failed; str() holds what it said."""


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder that all versions share."""
    if own := environment.get("DRACAENA_E2E_CACHE"):
        return Path(own)
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "dracaena-e2e"


def kubernetes_version(environment: Mapping[str, str]) -> str:
    """Return which of VERSIONS is asked for. Raises BuildError for any other."""
    asked = environment.get(VARIABLE) or VERSIONS[0]
    if asked not in VERSIONS:
        raise BuildError(f"{VARIABLE} is {asked!r}, expected {' or '.join(VERSIONS)}")
    return asked


def release_of(version: str) -> str:
    """Return the release that is built of a version, as the programs tell it: `v1.36.3`."""
    return _version(_kubernetes(version))


def builds(version: str) -> tuple[Build, ...]:
    """Return all that is built for tests on a version of Kubernetes."""
    return (*_FOR_ALL, _kubernetes(version))


def helm(root: Path) -> Path:
    """Return where helm is when it is built."""
    return _of_all(root, "helm", "helm")


def prometheus(root: Path) -> Path:
    """Return the folder of prometheus and promtool, after building them if they are not there. Raises BuildError."""
    with _lock(root):
        return _built(root, next(step for step in _FOR_ALL if step.folder == "prometheus"))


def is_built(root: Path, version: str) -> bool:
    """Tell whether all programs for tests on a version of Kubernetes are in the cache."""
    return (root / _set_key(version)).is_dir()


def build(root: Path, version: str) -> Path:
    """Return the folder that holds all programs for tests on a version of Kubernetes, after building what is not there.
    Safe to call from two runs at once.

    Raises BuildError. What was cut off leaves nothing that a later run would take for whole.
    """
    programs = root / _set_key(version)
    with _lock(root):
        if not programs.is_dir():
            for left_over in root.glob("*.unfinished"):  # nobody else builds: the lock is ours
                shutil.rmtree(left_over)
            _put_together(programs, [_built(root, step) for step in builds(version)])
    return programs


def kueue(root: Path) -> Path:
    """Return where Kueue is when it is built; kueue_crds() are beside it."""
    return root / _key(KUEUE) / KUEUE.names[0]


def kueue_crds(program: Path) -> Path:
    """Return the folder with the CustomResourceDefinitions of a Kueue that was built."""
    return program.parent.with_name(f"{program.parent.name}-crds")


def build_kueue(root: Path) -> None:
    """Build Kueue, if it is not there, and copy its CustomResourceDefinitions from the module."""
    with _lock(root):
        program = _built(root, KUEUE) / KUEUE.names[0]
        target = kueue_crds(program)
        if not target.is_dir():
            unfinished = target.with_name(f"{target.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(_module_folder(KUEUE) / "config" / "components" / "crd" / "bases", unfinished)
            unfinished.rename(target)


def _module_folder(step: Build) -> Path:
    """Return where Go keeps the source of the module that a build is of."""
    command = ("go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", step.module)
    environment = {**os.environ, **_GO_ENVIRONMENT}
    folder = SOURCES / step.folder
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"go does not know where {step.module} is:\n{done.stderr.strip()}")
    return Path(done.stdout.strip())


def _of_all(root: Path, folder: str, program: str) -> Path:
    return root / _key(next(step for step in _FOR_ALL if step.folder == folder)) / program


def _kubernetes(version: str) -> Build:
    names = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")
    packages = tuple(f"{_KUBERNETES}/cmd/{name}" for name in names)
    return Build(f"kubernetes-{version}", packages, "5 minutes", _KUBERNETES_VERSION, _KUBERNETES)


def _key(step: Build) -> str:
    """Return the name of what a build makes: its version, and a hash of all that decides the outcome."""
    digest = hashlib.sha256(repr((step, _GO_BUILD, _GO_ENVIRONMENT, platform.machine())).encode())
    digest.update(" ".join(step.tags).encode())
    for path in sorted((SOURCES / step.folder).iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return "-".join(filter(None, (step.folder, _version(step), digest.hexdigest()[:12])))


def _set_key(version: str) -> str:
    digest = hashlib.sha256("".join(map(_key, builds(version))).encode())
    return f"programs-kubernetes-{release_of(version)}-{digest.hexdigest()[:12]}"


def _built(root: Path, step: Build) -> Path:
    """Return the folder of what a build makes, after making it if it is not there."""
    target = root / _key(step)
    if not target.is_dir():
        _say(f"building {', '.join(step.names)} ({step.takes} when nothing is cached)")
        started = time.monotonic()
        unfinished = target.with_name(f"{target.name}.unfinished")
        unfinished.mkdir()
        _go_build(step, unfinished)
        unfinished.rename(target)
        _say(f"  took {time.monotonic() - started:.0f} s")
    return target


def _put_together(target: Path, folders: Iterable[Path]) -> None:
    """Make one folder of several, for PATH. Hard links take no room and do not dangle."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    unfinished.mkdir()
    for folder in folders:
        for program in folder.iterdir():
            os.link(program, unfinished / program.name)
    unfinished.rename(target)


def _go_build(step: Build, output: Path) -> None:
    version = _version(step)
    minor = version.split(".")[1] if version else ""
    flags = " ".join(
        ["-s", "-w", *(f"-X {variable.format(version=version, minor=minor)}" for variable in step.version_variables)]
    )
    go: subprocess.Popen[str] | None = None
    try:
        with uninterrupted() as let_interrupts_come:

            def begin() -> None:
                end_with_parent()
                let_interrupts_come()

            go = subprocess.Popen(
                [*_GO_BUILD, "-tags", ",".join(step.tags), "-ldflags", flags, "-o", f"{output}/", *step.packages],
                cwd=SOURCES / step.folder,
                env={**os.environ, **_GO_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=begin,  # noqa: PLW1509 - this process has one thread
            )
        said, _ = go.communicate()
    except BaseException:
        if go is not None:
            go.send_signal(signal.SIGINT)  # it removes its working folder, gigabytes in /tmp
            with suppress(subprocess.TimeoutExpired):
                go.wait(GO_STOP_S)
        raise
    finally:
        if go is not None:
            end_group(go)  # its compilers too
    if go.returncode != 0:
        raise BuildError(f"go build of {', '.join(step.names)} failed:\n{said.strip()}")


def _version(step: Build) -> str:
    """Return the version that go.mod requires; empty for a program of our own."""
    if not step.module:
        return ""
    text = (SOURCES / step.folder / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^(?:require\s|\t){re.escape(step.module)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"{SOURCES / step.folder / 'go.mod'} requires no version of {step.module}")
    return found.group(1)


@contextmanager
def _lock(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is building: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def only_run(root: Path) -> Iterator[None]:
    """Keep other runs from the logs of this one. Raises BuildError if another run has its own there now."""
    with (root / "running").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError(
                f"another run is under way and writes its logs to {root}: try again when it has ended"
            ) from None
        yield


def _say(line: str) -> None:
    sys.stdout.write(f"e2e: {line}\n")
    sys.stdout.flush()
