"""Protocol 3 (driver R615 and later): one daemon per node, a named server per GPU, a namespace per share.

Source: NVIDIA's MPS documentation, "MPS v3 Interface" and "MPS v3 Namespaces". What matters here:

* `namespace create` makes a namespace without limits, which is the whole GPU; `namespace set` gives it its limits. A
  named namespace does not inherit those of its server. So a namespace must not be announced before its limits were read
  back.
* Creating a server whose GPU is missing gives no error, but the server ends at once: only `server list` shows that.
* Names: lower-case letters, digits, `_`, at most 64.
* In multi-user mode a server belongs to user 0; otherwise to the one user whose clients it serves.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from dracaena.mps.protocol.seen import ClientSeen, ControlCommand, ServerSeen, ServerState, ShareLimits, garbage

PROTOCOL_FLAGS = ("-p", "3")

DEFAULT_NAMESPACE = "default"

_NAME = re.compile(r"[a-z0-9_]{1,64}")
_PID = re.compile(r"[0-9]{1,7}")
"""Linux has at most 2^22 process ids."""
_CLIENT_NAMESPACE = re.compile(r"([a-z0-9_]{1,64}/)?(?P<name>[a-z0-9_]{1,64})( \([0-9]+\))?")
_SERVER_COLUMNS = 7
_NAMESPACE_COLUMNS = 7
_CLIENT_COLUMNS = 5
_SERVER_PREFIX = "gpu_"
_UNITS_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_NONE = frozenset({"", "-", "none", "unlimited", "default"})
"""How an unset limit may be printed: the documentation shows `-` for an empty column."""


def server_name(gpu: str) -> str:
    """Return the name of a GPU's server and of its folder: `gpu_` and the UUID's digits with `_` instead of `-`."""
    return _SERVER_PREFIX + gpu.removeprefix("GPU-").lower().replace("-", "_")


def gpu_of(server: str) -> str | None:
    """Return the GPU of a server, None for one that we did not name."""
    digits = server.removeprefix(_SERVER_PREFIX)
    if digits == server or not re.fullmatch(r"[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}", digits):
        return None
    return "GPU-" + digits.replace("_", "-")


def ask_help() -> ControlCommand:
    """Ask for the usage: a driver that knows protocol 3 lists the modules `server` and `namespace`."""
    return ControlCommand((*PROTOCOL_FLAGS, "-h"))


def knows_protocol_3(usage: str) -> bool:
    """Read the answer to ask_help()."""
    words = set(re.findall(r"[a-z-]+", usage.lower()))
    return {"server", "namespace"} <= words


def start_daemon(*, multi_user: bool) -> ControlCommand:
    """Start the daemon in the background."""
    return ControlCommand(("-d", *PROTOCOL_FLAGS, *(("--multiuser",) if multi_user else ())))


def quit_daemon() -> ControlCommand:
    """End the daemon and all servers."""
    return ControlCommand(("-q",))


def list_servers() -> ControlCommand:
    """Ask for all servers."""
    return ControlCommand(("server", "list", "--format=csv,noheader"))


def list_namespaces() -> ControlCommand:
    """Ask for the namespaces of all servers."""
    return ControlCommand(("namespace", "list", "--format=csv,noheader"))


def list_clients() -> ControlCommand:
    """Ask for the clients of all servers."""
    return ControlCommand(("client", "list", "--all", "--format=csv,noheader"), quotes_users=True)


def create_server(gpu: str, uid: int) -> ControlCommand:
    """Start a GPU's server."""
    return ControlCommand(("server", "create", server_name(gpu), f"--uid={uid}", f"--allowed-devices={gpu}"))


def delete_server(gpu: str) -> ControlCommand:
    """End a GPU's server and whatever is still connected to it."""
    return ControlCommand(("server", "delete", server_name(gpu), "--force"))


def create_namespace(gpu: str, share: str) -> ControlCommand:
    """Make a share's namespace. It has no limits yet."""
    return ControlCommand(("namespace", "create", share, f"--server={server_name(gpu)}"))


def limit_namespace(gpu: str, share: str, limits: ShareLimits) -> ControlCommand:
    """Give a namespace its limits. A percentage is always given: the command wants at least one."""
    percentage = 100 if limits.thread_percentage is None else limits.thread_percentage
    memory = () if limits.pinned_memory_mib is None else (f"--pinned-memory-limit={limits.pinned_memory_mib}M",)
    return ControlCommand(
        ("namespace", "set", share, f"--server={server_name(gpu)}", f"--active-thread-percentage={percentage}", *memory)
    )


def delete_namespace(gpu: str, share: str) -> ControlCommand:
    """Remove a namespace, even if a client is still in it: its pods have ended, or are being ended by force."""
    return ControlCommand(("namespace", "delete", share, f"--server={server_name(gpu)}", "--force"))


def read_servers(answer: str) -> dict[str, ServerSeen]:
    """Read the answer to list_servers(): GPU → server, without servers that are not ours. Raises ControlAnswerError."""
    found = {}
    for row in _rows(list_servers(), answer, _SERVER_COLUMNS):
        name, uid, pid, word = row[:4]
        if not _NAME.fullmatch(name) or not uid.isdigit() or not pid.isdigit() or not word:
            raise garbage(list_servers(), ",".join(row), "name,uid,pid,status,…")
        gpu = gpu_of(name)
        if gpu is not None:
            found[gpu] = ServerSeen(int(pid), _state(word), word, int(uid))
    return found


def read_namespaces(answer: str) -> dict[tuple[str, str], ShareLimits]:
    """Read the answer to list_namespaces(): (GPU, share) → limits, without the servers' own default ones."""
    found = {}
    command = list_namespaces()
    for row in _rows(command, answer, _NAMESPACE_COLUMNS):
        name, server, _, memory, percentage = row[:5]
        if not _NAME.fullmatch(name) or not _NAME.fullmatch(server):
            raise garbage(command, ",".join(row), "name,server,server-status,…")
        gpu = gpu_of(server)
        if gpu is not None and name != DEFAULT_NAMESPACE:
            found[gpu, name] = ShareLimits(_percentage(command, percentage), _mib(command, memory))
    return found


def read_clients(answer: str) -> dict[str, tuple[ClientSeen, ...]]:
    """Read the answer to list_clients(): GPU → clients in order of pid.

    Of a namespace NVIDIA's documentation prints the name, `default`; driver 615 prints `server/default (0)`.

    The last column is a client's command line, which may contain anything, even line breaks. So lines that cannot be
    read are left out, and a client can fake further clients: use the result for reports only.
    """
    found: dict[str, list[ClientSeen]] = {}
    for line in answer.splitlines():
        columns = line.split(",", _CLIENT_COLUMNS - 1)
        if len(columns) < _CLIENT_COLUMNS or not _PID.fullmatch(columns[0].strip()):
            continue
        gpu = gpu_of(columns[1].strip())
        if gpu is not None:
            found.setdefault(gpu, []).append(ClientSeen(int(columns[0]), _namespace(columns[3])))
    return {gpu: tuple(sorted(clients, key=lambda each: each.pid)) for gpu, clients in sorted(found.items())}


def _namespace(column: str) -> str:
    """Return the name in a client's namespace column. A column of another form is returned as it is: it is no share."""
    found = _CLIENT_NAMESPACE.fullmatch(column.strip())
    return column.strip() if found is None else found["name"]


def _rows(command: ControlCommand, answer: str, columns: int) -> Iterator[list[str]]:
    for row in csv.reader(answer.splitlines()):
        if not row:
            continue
        if len(row) < columns:
            raise garbage(command, ",".join(row), f"{columns} columns")
        yield [field.strip() for field in row]


def _state(word: str) -> ServerState:
    """Read a server's status. The documentation shows only `Ready`; the other states are those of protocol 2."""
    text = word.lower()
    if text in ("ready", "active"):
        return ServerState.READY
    if "fault" in text:
        return ServerState.FAULT
    if text.startswith(("init", "start", "creat", "pending")):
        return ServerState.STARTING
    return ServerState.OTHER


def _percentage(command: ControlCommand, text: str) -> int | None:
    if text.lower() in _NONE:
        return None
    found = re.fullmatch(r"(\d{1,3})(\.\d+)?%?", text, re.ASCII)
    if found is None:
        raise garbage(command, text, "a percentage")
    return int(found[1])


def _mib(command: ControlCommand, text: str) -> int | None:
    if text.lower() in _NONE:
        return None
    found = re.fullmatch(r"(\d{1,12})\s*([KMGT])B?", text, re.ASCII)
    if found is None:
        raise garbage(command, text, "a number of K, M, G or T")
    return int(found[1]) * _UNITS_KIB[found[2]] // 1024
