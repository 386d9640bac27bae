"""What the kubelet plugin and the MPS supervisor (`dracaena mps`) say to each other: files below one folder of a node.

The plugin writes a request for each share and removes it to withdraw the share. The supervisor answers with a status,
and removes it when nothing of the share is left. Both files have the same name, `<share>.json`, in the folders REQUESTS
and STATUS. Each is replaced as a whole (rename), so a reader sees one version or the other. Why files and no socket:
docs/design/mps.md.
"""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from typing import TypeVar

import msgspec

from dracaena.api.errors import BadInputError

REQUESTS = "requests"
"""Folder below the root: written by the plugin, read by the supervisor."""

STATUS = "status"
"""Folder below the root: written by the supervisor, read by the plugin."""

SUFFIX = ".json"

NODE_STATUS = "node.json"
"""File in the root: what the supervisor can do on this node."""

LOCK = "supervisor.lock"
"""File in the root that a running supervisor locks with flock(2): a process that gets the lock knows that none runs."""

FORMAT = 1
"""Version of these documents. A reader refuses a higher one and ignores fields that it does not know."""

SHARE_NAME = re.compile(r"s_[0-9a-f]{16}")
"""A share's name is also that of its MPS namespace, which may have lower-case letters, digits and `_`, at most 64
characters. It is short because it is part of the path of a Unix socket, which has at most 107 bytes."""

GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

MOST_PERCENT = 100

CLIENT_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - in the client's container, and the driver's own default for clients
"""Where containers see their pipe folder."""

CLIENT_SHM = "/dev/shm"  # noqa: S108 - the one place of shm_open(3)
"""Where servers and clients of protocol 2 see the shared memory of their GPU."""


def client_folders(protocol: int) -> tuple[str, ...]:
    """Return the folders that the containers of a share see as the supervisor wants: no volume of a pod can be there.
    Protocol 0 is not known: all folders that there may be.
    """
    return (CLIENT_PIPES,) if protocol >= 3 else (CLIENT_PIPES, CLIENT_SHM)


class MpsPhase(Enum):
    """Where a share is."""

    PENDING = "Pending"
    """It is being made; ask again. The message says what it waits for."""
    READY = "Ready"
    """Its server answers and its limits hold: containers may be started."""
    FAILED = "Failed"
    """It was tried and did not work, or worked and broke. The supervisor keeps trying; see the message."""
    REFUSED = "Refused"
    """It will not be tried as it stands: a person must change the request, the node or the driver."""


class MpsFaultKind(Enum):
    """What ended or hurt the clients of a server."""

    SERVER_FAULT = "ServerFault"
    """A client caused a fatal fault, which hits all clients of the server; it accepts no others until they have
    left."""
    SERVER_DIED = "ServerDied"
    DAEMON_DIED = "DaemonDied"
    GPU_LOST = "GpuLost"


class MpsShareRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One share of one GPU that a prepared claim needs."""

    format: int = FORMAT
    boot_id: str
    """Of the boot in which the claim was prepared: a request of an earlier boot is not served."""
    gpu: str
    """UUID as NVML prints it."""
    claim_uid: str
    share_id: str = ""
    """Of the allocation; empty if one claim has the whole GPU."""
    thread_percentage: int | None = None
    """1 to 100 of the GPU's threads, a ceiling; None: all of them."""
    pinned_memory_mib: int | None = None
    """What one client process may allocate; None: no limit by MPS."""
    client_uid: int | None = None
    """User id of all client processes; None: unknown, or several. Needed only if the clients of just one user are
    served (MpsNodeStatus.multi_user is false)."""


class MpsMount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder of the host that the share's containers must see."""

    host_path: str
    container_path: str
    read_only: bool = False
    """A reader that does not know this field mounts it writable."""


class MpsClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that was connected to the server."""

    pid: int
    """In the host's namespace of process ids."""
    pod_uid: str = ""
    """From its cgroup; empty if that does not show it, or the process is gone."""


class MpsFault(msgspec.Struct, frozen=True, kw_only=True):
    """The last thing that hit a share's clients."""

    sequence: int
    """1 for the first fault of this share: for a reader that knows a lower number this one is new."""
    kind: MpsFaultKind
    message: str
    since: str
    """When it was seen, RFC 3339."""
    clients: tuple[MpsClient, ...] = ()
    """The server's clients when it was last asked, in order of pid. With protocol 3 only those of this share."""


class MpsShareStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has become of a request."""

    format: int = FORMAT
    request: str
    """digest() of the request that this answers: a reader that has written another one keeps waiting."""
    phase: MpsPhase
    message: str = ""
    gpu: str = ""
    claim_uid: str = ""
    share_id: str = ""
    environment: dict[str, str] = {}
    """What the share's containers need, when it is ready."""
    mounts: tuple[MpsMount, ...] = ()
    server_pid: int = 0
    """Of the MPS server, when it is ready; or from before a restart of the supervisor, until that looks again."""
    fault: MpsFault | None = None


class MpsNodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor can do on this node."""

    format: int = FORMAT
    boot_id: str
    protocol: int
    """2 or 3; 0 if the driver has no MPS, or is not there yet."""
    message: str
    """Why there is no MPS, if protocol is 0."""
    multi_user: bool
    """Whether clients of different users may share a GPU."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that have a server of ours, or whose compute mode is yet to be restored; sorted."""


D = TypeVar("D", MpsShareRequest, MpsShareStatus, MpsNodeStatus)


def share_name(gpu: str, claim_uid: str, share_id: str) -> str:
    """Return the name of a share's files and MPS namespace: the same for the same share, another for any other."""
    text = "\0".join((gpu, claim_uid, share_id))
    return "s_" + hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(data: bytes) -> str:
    """Return a digest of a file's content, which distinguishes versions of a request."""
    return hashlib.sha256(data).hexdigest()[:16]


def encode(document: MpsShareRequest | MpsShareStatus | MpsNodeStatus) -> bytes:
    """Return a file's content. Equal documents are equal bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_request(data: bytes) -> MpsShareRequest:
    """Read a request. Raises a BadInputError that says which field is wrong, what was seen and what was expected."""
    request = _decode(data, MpsShareRequest)
    if not GPU_UUID.fullmatch(request.gpu):
        raise BadInputError(f"gpu is {request.gpu!r}, expected a GPU's UUID as NVML prints it")
    if not request.claim_uid:
        raise BadInputError("claim_uid is empty, expected the UID of a ResourceClaim")
    percent = request.thread_percentage
    if percent is not None and not 1 <= percent <= MOST_PERCENT:
        raise BadInputError(f"thread_percentage is {percent}, expected 1 to {MOST_PERCENT}")
    memory = request.pinned_memory_mib
    if memory is not None and memory < 1:
        raise BadInputError(f"pinned_memory_mib is {memory}, expected at least 1")
    if request.client_uid is not None and not 0 <= request.client_uid < 1 << 32:
        raise BadInputError(f"client_uid is {request.client_uid}, expected a user id")
    return request


def decode_status(data: bytes) -> MpsShareStatus:
    """Read a status. Raises BadInputError."""
    return _decode(data, MpsShareStatus)


def decode_node_status(data: bytes) -> MpsNodeStatus:
    """Read what the supervisor says about the node. Raises BadInputError."""
    return _decode(data, MpsNodeStatus)


def _decode(data: bytes, kind: type[D]) -> D:
    try:
        document = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"the document does not decode: {error}") from error
    if not 1 <= document.format <= FORMAT:
        raise BadInputError(f"format is {document.format}, expected {FORMAT}: the other side is newer than this one")
    return document
