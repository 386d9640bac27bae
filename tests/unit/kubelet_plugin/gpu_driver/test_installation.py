"""The driver's files are found once, and again when the driver or its daemons change."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.host.facts.troubles import GpuDriverReleasedError, GpuDriverTroubleError, Trouble
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel
from dracaena.kubelet_plugin.gpu_driver.installation import (
    LOOK_S,
    GpuDriverFilesMissingError,
    GpuDriverInstallation,
    GpuDriverPlaces,
)
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS
from support.clock import FakeClock
from support.gpu_driver_root import VERSION, put, put_gpu_driver
from support.ld_so_cache import ld_so_cache


def installed(
    root: Path,
    host_root: str = "/",
    *,
    required: bool = True,
    hook_tool: str = "",
    refusal: Callable[[], str | None] = lambda: None,
    on_troubles: Callable[[tuple[Trouble, ...]], None] = lambda _: None,
    clock: FakeClock | None = None,
) -> GpuDriverInstallation:
    return GpuDriverInstallation(
        GpuDriverPlaces(str(root), host_root, str(root / "host"), hook_tool),
        required=required,
        kernel=Kernel(str(root / "sys")),
        refusal=refusal,
        on_troubles=on_troubles,
        clock=clock,
    )


def host_paths(edits: GpuDriverEdits) -> set[str]:
    return {mount.host_path for mount in edits.mounts}


def test_host_paths_are_those_of_the_host_and_not_of_this_process(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    edits = installed(tmp_path, "/run/nvidia/driver").edits()
    assert f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}" in host_paths(edits)
    assert not any(str(tmp_path) in path for path in host_paths(edits))


def test_an_unchanged_driver_is_not_searched_again(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    installation = installed(tmp_path)
    assert installation.edits() is installation.edits()


def test_another_driver_version_is_followed(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    installation = installed(tmp_path)
    installation.edits()
    put_gpu_driver(tmp_path, version="590.44.01")
    paths = host_paths(installation.edits())
    assert "/usr/lib64/libcuda.so.590.44.01" in paths
    assert f"/usr/lib64/libcuda.so.{VERSION}" not in paths


def test_a_socket_that_comes_or_goes_is_followed(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    installation = installed(tmp_path)
    assert not any("persistenced" in path for path in host_paths(installation.edits()))
    socket = tmp_path / "run/nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    os.mknod(socket, stat.S_IFSOCK | 0o666)
    assert "/run/nvidia-persistenced/socket" in host_paths(installation.edits())
    socket.unlink()
    assert not any("persistenced" in path for path in host_paths(installation.edits()))


@pytest.mark.parametrize(
    "path",
    [
        f"/usr/lib64/libnvidia-encode.so.{VERSION}",
        f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/etc/OpenCL/vendors/nvidia.icd",
    ],
)
def test_a_file_that_is_installed_later_is_followed(tmp_path: Path, path: str) -> None:
    """An installation brings its files one by one: the first claim may come in between."""
    put_gpu_driver(tmp_path)
    folder = (tmp_path / path.lstrip("/")).parent
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder, ns=(0, 0))  # long ago, whatever the clock of the file system
    installation = installed(tmp_path)
    assert path not in host_paths(installation.edits())
    file = put(tmp_path, path)
    assert path in host_paths(installation.edits())
    os.utime(folder, ns=(0, 0))
    file.unlink()
    assert path not in host_paths(installation.edits())


def test_a_root_without_driver_is_said_until_one_is_there(tmp_path: Path) -> None:
    installation = installed(tmp_path, "/run/nvidia/driver")
    with pytest.raises(GpuDriverFilesMissingError, match=r"no NVIDIA driver below /run/nvidia/driver .*--driver-root"):
        installation.edits()
    put_gpu_driver(tmp_path)
    assert installation.edits().mounts


def test_a_recorded_machine_needs_no_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("999.99\n")
    assert installed(tmp_path, required=False).edits() == GpuDriverEdits()
    put_gpu_driver(tmp_path)
    assert installed(tmp_path, required=False).edits().mounts


def put_tool(root: Path) -> Path:
    tool = put(root, "host/usr/bin/nvidia-cdi-hook", " ".join(COMMANDS).encode())
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize("host_root", ["/", "/run/nvidia/driver"])
def test_hooks_come_with_any_driver_root(tmp_path: Path, host_root: str) -> None:
    """The runtime runs the tool on the host, wherever the driver is."""
    put_gpu_driver(tmp_path)
    tool = put_tool(tmp_path)
    installation = installed(tmp_path, host_root)
    assert {hook.path for hook in installation.edits().hooks} == {"/usr/bin/nvidia-cdi-hook"}
    tool.unlink()
    assert installation.edits().hooks == ()


def test_what_containers_lose_without_the_tool_is_told_until_it_is_there(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    told: list[tuple[Trouble, ...]] = []
    installation = installed(tmp_path, on_troubles=told.append)
    installation.edits()
    installation.edits()
    (trouble,) = told[-1]
    assert trouble.reason == "HookToolMissing"
    assert "no nvidia-cdi-hook or nvidia-ctk in /usr/bin" in trouble.text
    assert "hook-tool" in trouble.advice
    put_tool(tmp_path)
    installation.edits()
    assert told[-1] == ()


def reasons(told: list[tuple[Trouble, ...]]) -> list[str]:
    return [trouble.reason for trouble in told[-1]]


def test_a_tool_that_comes_is_seen_without_a_claim(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    told: list[tuple[Trouble, ...]] = []
    installation = installed(tmp_path, on_troubles=told.append)
    installation.edits()
    installation.fault()
    assert reasons(told) == ["HookToolMissing"]
    tool = put_tool(tmp_path)
    installation.fault()
    assert reasons(told) == []
    tool.unlink()
    installation.edits()
    assert reasons(told) == ["HookToolMissing"]
    put_tool(tmp_path)
    assert installation.edits().hooks
    installation.fault()
    assert reasons(told) == []
    tool.unlink()
    installation.edits()
    assert reasons(told) == ["HookToolMissing"]


def test_who_wants_no_hooks_hears_nothing(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put_tool(tmp_path)
    told: list[tuple[Trouble, ...]] = []
    assert installed(tmp_path, hook_tool="none", on_troubles=told.append).edits().hooks == ()
    assert set(told) == {()}


def load(root: Path, version: str) -> None:
    put(root, "sys/module/nvidia/version", f"{version}\n".encode())


def test_libraries_that_do_not_fit_the_loaded_module_are_refused_by_name(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    load(tmp_path, "590.44.01")
    installation = installed(tmp_path)
    with pytest.raises(
        GpuDriverTroubleError, match=f"libraries below / are of version {VERSION}, .*loaded is 590.44.01"
    ):
        installation.edits()
    load(tmp_path, VERSION)
    assert installation.edits().mounts


def test_after_an_update_the_libraries_of_the_loaded_module_are_given(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put_gpu_driver(tmp_path, version="590.44.01")
    installation = installed(tmp_path)
    for version in (VERSION, "590.44.01"):
        load(tmp_path, version)
        assert {path.partition(".so.")[2] for path in host_paths(installation.edits())} >= {version}
        assert f"/usr/lib64/libcuda.so.{version}" in host_paths(installation.edits())
        assert sum("libcuda.so" in path for path in host_paths(installation.edits())) == 1


def test_a_driver_without_cuda_is_refused_by_the_name_of_what_is_missing(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    library = tmp_path / f"usr/lib64/libcuda.so.{VERSION}"
    library.unlink()
    with pytest.raises(GpuDriverFilesMissingError, match=f"no libcuda.so.{VERSION} below / .*Install"):
        installed(tmp_path).edits()


def test_libraries_that_only_the_loaders_cache_knows_are_found(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path, "/usr/lib")
    installation = installed(tmp_path)
    with pytest.raises(GpuDriverFilesMissingError, match=r"in /etc/ld\.so\.cache"):
        installation.edits()
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    put(tmp_path, "/etc/ld.so.cache", ld_so_cache({name: f"/usr/lib/{name}" for name in names}))
    assert f"/usr/lib/libcuda.so.{VERSION}" in host_paths(installation.edits())


def test_libraries_of_another_version_than_the_loaded_module_are_given_to_nobody(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    load(tmp_path, VERSION)
    told: list[tuple[Trouble, ...]] = []
    installation = installed(tmp_path, hook_tool="none", on_troubles=told.append)
    installation.edits()
    assert installation.fault() is None
    load(tmp_path, "590.44.01")
    with pytest.raises(GpuDriverTroubleError, match=f"are of version {VERSION}, .*loaded is 590.44.01"):
        installation.edits()
    fault = installation.fault()
    assert fault is not None
    assert (fault.key, fault.blocks) == ("driver-mismatch", True)
    assert [trouble.reason for trouble in told[-1]] == ["DriverVersionMismatch"]
    put_gpu_driver(tmp_path, version="590.44.01")
    assert "/usr/lib64/libcuda.so.590.44.01" in host_paths(installation.edits())
    assert installation.fault() is None
    assert told[-1] == ()


def test_a_module_that_says_no_version_is_not_compared(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    installation = installed(tmp_path)
    assert installation.edits().mounts
    assert installation.fault() is None


def test_the_driver_of_a_recorded_machine_is_not_compared_with_this_machines(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    load(tmp_path, "1.2.3")
    installation = installed(tmp_path, required=False)
    assert installation.edits().mounts
    assert installation.fault() is None


def test_while_the_driver_is_let_go_of_nobody_gets_it(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    why = ["asked for by a label"]
    installation = installed(tmp_path, refusal=lambda: why[0] if why else None)
    with pytest.raises(GpuDriverReleasedError, match="asked for by a label; the claim is prepared when"):
        installation.edits()
    why.clear()
    assert installation.edits().mounts


def test_files_that_hang_end_the_call_in_time_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_gpu_driver(tmp_path)
    inside, release, clock = threading.Event(), threading.Event(), FakeClock()

    def hang(*_: object) -> tuple[str, None]:
        inside.set()
        release.wait()
        return VERSION, None

    monkeypatch.setattr("dracaena.kubelet_plugin.gpu_driver.installation.library_versions", hang)
    troubles: list[str] = []
    installation = installed(tmp_path, on_troubles=lambda found: troubles.extend(t.reason for t in found), clock=clock)
    errors: list[str] = []

    def prepare() -> None:
        try:
            installation.edits()
        except WedgedError as error:
            errors.append(str(error))

    caller = threading.Thread(target=prepare)
    caller.start()
    inside.wait()
    clock.advance(LOOK_S + 1)
    caller.join(30)
    prepare()  # at once: nobody waits for what hangs already
    assert len(errors) == 2
    assert f"a look at the driver's files below {tmp_path} has not returned in time" in errors[0]
    fault = installation.fault()
    assert fault is not None
    assert fault.key == "silent"
    assert set(troubles) == {"DriverSilent"}
    installation.stop()
    release.set()


def test_a_toolkit_that_gives_gpus_without_a_claim_is_told_until_it_is_closed(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put_tool(tmp_path)
    told: list[tuple[Trouble, ...]] = []
    installation = installed(tmp_path, on_troubles=told.append)
    installation.edits()
    assert reasons(told) == [], "no runtime of NVIDIA's, no door"
    runtime = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    put(tmp_path, "host/etc/crio/crio.conf.d/99-nvidia.conf", runtime.encode())
    installation.fault()
    (trouble,) = told[-1]
    assert reasons(told) == ["GpusWithoutClaim"]
    assert "a RuntimeClass with handler nvidia gets the GPUs that it names" in trouble.text
    assert "toolkit.env" in trouble.advice
    closed = b"accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    put(tmp_path, "host/etc/nvidia-container-runtime/config.toml", closed)
    installation.fault()
    assert reasons(told) == []
    assert installed(tmp_path, required=False, on_troubles=told.append).fault() is None
