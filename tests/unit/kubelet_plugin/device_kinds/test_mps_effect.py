from __future__ import annotations

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.mps import MpsMount, MpsPhase, MpsShareStatus, decode_request, encode
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.mps_effect import mps_edits, mps_effect, mps_request
from dracaena.kubelet_plugin.prepare.cdi.spec import Mount
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from support.plugin import prepared_claim

ROOT = "/run/mps"
INSIDE = "/tmp/nvidia-mps"


def share(memory_bytes: int, cores: int) -> PreparedDevice:
    (device,) = prepared_claim(share_id="share", memory_bytes=memory_bytes, cores=cores).devices
    return device


@pytest.mark.parametrize(
    ("memory_bytes", "cores", "is_limited", "asked"),
    [
        (10 << 30, 30, True, (30, 10240)),
        ((2 << 20) - 1, 0, True, (None, 1)),
        (80 << 30, 100, False, (100, None)),
        (80 << 30, 0, False, (None, None)),
    ],
)
def test_a_share_is_asked_for_by_what_it_consumes(
    memory_bytes: int, cores: int, is_limited: bool, asked: tuple[int | None, int | None]
) -> None:
    effect = mps_effect(share(memory_bytes, cores), ClaimUid("claim"), memory_is_limited=is_limited)
    assert effect is not None
    request = mps_request("claim", effect.parameters, "boot")
    assert (request.thread_percentage, request.pinned_memory_mib) == asked
    assert decode_request(encode(request)) == request


def test_less_than_mps_can_limit_is_no_effect() -> None:
    assert mps_effect(share((1 << 20) - 1, 10), ClaimUid("claim"), memory_is_limited=True) is None


def ready(*mounts: tuple[str, str], **environment: str) -> MpsShareStatus:
    return MpsShareStatus(
        request="",
        phase=MpsPhase.READY,
        environment=environment,
        mounts=tuple(MpsMount(host_path=host, container_path=inside) for host, inside in mounts),
    )


def test_containers_get_what_the_supervisor_says() -> None:
    status = ready((f"{ROOT}/pipe/x", INSIDE), (f"{ROOT}/shm/x", "/dev/shm"), B="2=3", A="1")
    edits = mps_edits(status, ROOT)
    assert edits.env == ("A=1", "B=2=3")
    flags = ("nosuid", "nodev", "noexec", "bind")
    assert edits.mounts == (
        Mount(f"{ROOT}/pipe/x", INSIDE, ("rw", *flags)),
        Mount(f"{ROOT}/shm/x", "/dev/shm", ("rw", *flags)),
    )
    mount = MpsMount(host_path=f"{ROOT}/pipe/x", container_path=INSIDE, read_only=True)
    read_only = MpsShareStatus(request="", phase=MpsPhase.READY, mounts=(mount,))
    assert mps_edits(read_only, ROOT).mounts == (Mount(f"{ROOT}/pipe/x", INSIDE, ("ro", *flags)),)


@pytest.mark.parametrize(
    "host", ["/", "/etc", ROOT, f"{ROOT}/", f"{ROOT}er", f"{ROOT}/../etc", f"{ROOT}/a/..", f"{ROOT}//etc", "x", ""]
)
def test_no_folder_outside_of_the_supervisors_reaches_a_container(host: str) -> None:
    with pytest.raises(BadInputError, match="expected a folder below"):
        mps_edits(ready((host, INSIDE)), ROOT)


@pytest.mark.parametrize("inside", ["/", "", "tmp", "/a/../..", "//a"])
def test_a_place_in_the_container_is_a_path(inside: str) -> None:
    with pytest.raises(BadInputError, match="expected an absolute path"):
        mps_edits(ready((f"{ROOT}/pipe", inside)), ROOT)


@pytest.mark.parametrize("name", ["", "A=B"])
def test_a_variable_has_a_name(name: str) -> None:
    with pytest.raises(BadInputError, match="names a variable"):
        mps_edits(ready((f"{ROOT}/pipe", INSIDE), **{name: "1"}), ROOT)
