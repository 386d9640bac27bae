"""The files between the kubelet plugin and the MPS supervisor."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api import mps
from dracaena.api.errors import BadInputError
from dracaena.api.mps import (
    MpsClient,
    MpsFault,
    MpsFaultKind,
    MpsMount,
    MpsNodeStatus,
    MpsPhase,
    MpsShareRequest,
    MpsShareStatus,
)

GPU = "GPU-11111111-2222-3333-4444-555555555555"
REQUEST = MpsShareRequest(boot_id="b", gpu=GPU, claim_uid="c", share_id="s", thread_percentage=30, pinned_memory_mib=1)
STATUS = MpsShareStatus(
    request="0123456789abcdef",
    phase=MpsPhase.READY,
    gpu=GPU,
    claim_uid="c",
    environment={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"},
    mounts=(MpsMount(host_path="/run/a", container_path="/tmp/nvidia-mps"),),
    server_pid=17,
    fault=MpsFault(
        sequence=2,
        kind=MpsFaultKind.SERVER_FAULT,
        message="m",
        since="2026-01-01T00:00:00Z",
        clients=(MpsClient(pid=4, pod_uid="p"),),
    ),
)


def test_documents_are_read_as_they_were_written() -> None:
    assert mps.decode_request(mps.encode(REQUEST)) == REQUEST
    assert mps.decode_status(mps.encode(STATUS)) == STATUS
    node = MpsNodeStatus(boot_id="b", protocol=3, message="", multi_user=True, gpus=(GPU,))
    assert mps.decode_node_status(mps.encode(node)) == node


def test_fields_of_a_later_version_are_ignored_and_a_later_format_is_not() -> None:
    known = msgspec.json.decode(mps.encode(REQUEST))
    assert mps.decode_request(msgspec.json.encode({**known, "colour": "green"})) == REQUEST
    with pytest.raises(BadInputError, match="format is 2, expected 1"):
        mps.decode_request(msgspec.json.encode({**known, "format": 2}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": "0"}, "gpu is '0'"),
        ({"gpu": "GPU-ABCDEFAB-2222-3333-4444-555555555555"}, "expected a GPU's UUID"),
        ({"gpu": "MIG-11111111-2222-3333-4444-555555555555"}, "expected a GPU's UUID"),
        ({"claim_uid": ""}, "claim_uid is empty"),
        ({"thread_percentage": 0}, "thread_percentage is 0, expected 1 to 100"),
        ({"thread_percentage": 101}, "thread_percentage is 101"),
        ({"thread_percentage": 2.5}, "does not decode"),
        ({"pinned_memory_mib": 0}, "pinned_memory_mib is 0"),
        ({"pinned_memory_mib": -1}, "pinned_memory_mib is -1"),
        ({"client_uid": 1 << 32}, "expected a user id"),
        ({"boot_id": None}, "does not decode"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_seen(change: dict[str, object], words: str) -> None:
    document = {**msgspec.json.decode(mps.encode(REQUEST)), **change}
    with pytest.raises(BadInputError, match=words):
        mps.decode_request(msgspec.json.encode(document))


def test_each_share_has_a_name_of_its_own_that_mps_takes() -> None:
    names = {
        mps.share_name(gpu, claim, share)
        for gpu in (GPU, "GPU-2")
        for claim in ("a", "ab", "")
        for share in ("b", "", "a")
    }
    assert len(names) == 18
    assert all(mps.SHARE_NAME.fullmatch(name) for name in names)
    assert mps.share_name(GPU, "c", "s") == mps.share_name(GPU, "c", "s")


def test_a_request_that_was_written_again_has_another_digest() -> None:
    other = msgspec.structs.replace(REQUEST, pinned_memory_mib=2)
    assert mps.digest(mps.encode(REQUEST)) == mps.digest(mps.encode(REQUEST)) != mps.digest(mps.encode(other))
