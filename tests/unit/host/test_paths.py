from __future__ import annotations

from fnmatch import fnmatch

import pytest

from dracaena.api.errors import BadInputError
from dracaena.host.paths import MAX_SOCKET_PATH_BYTES, instance_of_lock, plugin_paths

DRIVER = "gpu.dracaena.dev"
UID = "5ab9c1c2-0000-4000-8000-000000000001"


def test_a_single_instance_has_the_plain_names() -> None:
    paths = plugin_paths("/var/lib/kubelet", DRIVER, "")
    assert str(paths.dra_socket) == "/var/lib/kubelet/plugins/gpu.dracaena.dev/dra.sock"
    assert str(paths.registration_socket) == "/var/lib/kubelet/plugins_registry/gpu.dracaena.dev-reg.sock"
    assert str(paths.podlist) == "/var/lib/kubelet/pod-resources"


def test_two_instances_share_state_and_the_call_lock_but_no_socket() -> None:
    a, b = (plugin_paths("/var/lib/kubelet", DRIVER, uid) for uid in (UID, UID.replace("1", "2")))
    assert a.dra_socket.name == f"dra-{UID}.sock"
    assert a.registration_socket.name == f"{DRIVER}-{UID}-reg.sock"
    assert {a.dra_socket, a.registration_socket, a.instance_lock}.isdisjoint(
        {b.dra_socket, b.registration_socket, b.instance_lock}
    )
    assert (a.checkpoints, a.call_lock, a.podlist) == (b.checkpoints, b.call_lock, b.podlist)


@pytest.mark.parametrize(
    ("driver", "dra", "registration"),
    [
        (DRIVER, f"dra-{UID}.sock", f"{DRIVER}-{UID}-reg.sock"),
        ("d" * 33, f"dra-{UID}.sock", "d" * 33 + f"-{'?' * 11}-reg.sock"),
        ("d" * 60, f"dra-{'?' * 11}.sock", f"dra-{'?' * 22}-reg.sock"),
    ],
)
def test_names_that_are_too_long_get_shorter(driver: str, dra: str, registration: str) -> None:
    paths = plugin_paths("/var/lib/kubelet", driver, UID)
    for path, pattern in ((paths.dra_socket, dra), (paths.registration_socket, registration)):
        assert fnmatch(path.name, pattern)
        assert len(str(path).encode()) <= MAX_SOCKET_PATH_BYTES
    other = plugin_paths("/var/lib/kubelet", driver, UID.replace("1", "2"))
    assert {other.dra_socket, other.registration_socket}.isdisjoint({paths.dra_socket, paths.registration_socket})


@pytest.mark.parametrize("uid", ["", UID])
def test_a_socket_path_that_is_too_long_is_refused_with_its_length(uid: str) -> None:
    with pytest.raises(BadInputError, match=r"has 1\d\d bytes, the kernel takes 107: choose a shorter kubelet root"):
        plugin_paths("/" + "ü" * 50, DRIVER, uid)


@pytest.mark.parametrize("uid", ["", UID])
def test_a_lock_file_tells_whose_it_is(uid: str) -> None:
    assert instance_of_lock(plugin_paths("/var/lib/kubelet", DRIVER, uid).instance_lock.name) == uid


@pytest.mark.parametrize("name", ["serialize.lock", "instance-.lock", "instance-a/b.lock", "instance-x.lock.old"])
def test_other_names_are_no_lock_file(name: str) -> None:
    assert instance_of_lock(name) is None
