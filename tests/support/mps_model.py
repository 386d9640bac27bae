"""What a control daemon of MPS does, by NVIDIA's documentation: protocol 2 and 3, limits, faults, users.

Standard library alone: the fake program runs it in a process of its own (fake_mps_daemon.py), tests of the supervisor
run it in theirs (mps_world.py). What the documentation leaves open is marked "open".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

NO_DAEMON = "Cannot find MPS control daemon process"
USAGE_2 = "usage: nvidia-cuda-mps-control [-d | -f | -v | -S | -multiuser-server]\n"
USAGE_3 = (
    "usage: nvidia-cuda-mps-control [options] <module> <verb>\n  -p, --protocol <2|3>\n"
    "modules: server namespace client device sm-partition feature memacct context-share\n"
)

OK = 0
NOT_PERMITTED = 800
CONNECTION_FAILED = 805
SERVER_NOT_READY = 807
MAX_CLIENTS_REACHED = 808
WAITS = -1
"""No code: a client of another user waits until those of this one have left."""

CLIENTS_R590 = 60
"""A device, from CUDA 13.1; 48 before."""
CLIENTS_BEFORE = 48

_NAME = re.compile(r"[a-z0-9_]{1,64}")
_SIZE = re.compile(r"(\d+)([KMG])")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024}


@dataclass
class Limits:
    percentage: float = 100.0
    memory: dict[str, str] = field(default_factory=dict)
    """Device, as it was named → limit, as it was given: `10G`."""

    def copy(self) -> Limits:
        return Limits(self.percentage, dict(self.memory))


@dataclass
class Client:
    pid: int
    uid: int
    namespace: str
    limits: Limits
    """Those that held when it connected, for good."""


@dataclass
class Server:
    name: str
    pid: int
    uid: int
    devices: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    namespaces: dict[str, Limits] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)
    hit: set[int] = field(default_factory=set)
    """Clients that a fatal fault has hit and that have not left."""
    starting: bool = False

    @property
    def state(self) -> str:
        return "INITIALIZING" if self.starting else "FAULT" if self.hit else "ACTIVE"


class MpsModel:
    """One daemon. `present()` are the GPUs that the driver has now, `spawn` and `reap` begin and end servers."""

    def __init__(
        self,
        protocol: int,
        *,
        visible: tuple[str, ...] = (),
        present: Callable[[], set[str]],
        spawn: Callable[[int], int],
        reap: Callable[[int], None],
        multi_user: bool = False,
        owner: int = 0,
        most_clients: int = CLIENTS_R590,
        slow_start: bool = False,
    ) -> None:
        self.protocol, self.visible, self.multi_user, self.owner = protocol, visible, multi_user, owner
        self.servers: dict[str, Server] = {}
        """Name → server; with protocol 2 the name is the user id: one is active for each, and one in all."""
        self.defaults = Limits()
        self.ended = False
        self.command_line = "python train.py --sizes 1,2"
        """Of each client, as it is listed."""
        self._present, self._spawn, self._reap = present, spawn, reap
        self._most_clients, self._slow_start = most_clients, slow_start

    def command(self, arguments: list[str], text: str) -> tuple[int, str]:
        """Return exit code and output of one call of the control program."""
        self._drop_lost()
        if arguments == ["-q"] or arguments == ["--quit"]:
            return self._quit()
        if self.protocol == 3:
            return self._v3(arguments) if arguments else (1, USAGE_3)
        if arguments:
            return 1, USAGE_2
        answers = [self._v2(line.split()) for line in text.splitlines() if line.strip()]
        return 0, "".join(f"{answer}\n" for answer in answers if answer)

    def finish_starting(self) -> None:
        """Let servers that were INITIALIZING become ready."""
        for server in self.servers.values():
            server.starting = False

    def _drop_lost(self) -> None:
        for server in list(self.servers.values()):
            if not set(server.devices) <= self._present():
                self._end(server)

    def _quit(self) -> tuple[int, str]:
        for server in list(self.servers.values()):
            self._end(server)
        self.ended = True
        return 0, ""

    def _end(self, server: Server) -> None:
        del self.servers[server.name]
        self._reap(server.pid)

    def server_died(self, pid: int) -> None:
        """A server process was ended from outside."""
        self.servers = {name: server for name, server in self.servers.items() if server.pid != pid}

    # Protocol 2

    def _v2(self, words: list[str]) -> str:
        name, rest = words[0], words[1:]
        if name == "quit":
            self._quit()
            return ""
        if name == "get_server_list":
            return "\n".join(str(server.pid) for server in self.servers.values())
        if name == "start_server" and rest[:1] == ["-uid"]:
            return self._v2_start(int(rest[1]))
        if name == "set_default_active_thread_percentage":
            self.defaults.percentage = float(rest[0])
            return str(self.defaults.percentage)
        if name == "get_default_active_thread_percentage":
            return str(self.defaults.percentage)
        if name == "set_default_device_pinned_mem_limit":
            if not re.fullmatch(r"\d+[GM]", rest[1]):
                return "invalid value"
            self.defaults.memory[rest[0]] = rest[1]  # the device is not validated
            return ""
        if name == "get_default_device_pinned_mem_limit":
            return self.defaults.memory.get(rest[0], "")  # open: how none is printed
        server = next((each for each in self.servers.values() if rest and str(each.pid) == rest[0]), None)
        if server is None:
            return f"no server with PID {rest[0]}" if rest else "unknown command"
        return self._v2_server(name, server, rest[1:])

    def _v2_server(self, name: str, server: Server, rest: list[str]) -> str:
        if name == "get_server_status":
            return server.state
        if name == "get_client_list":
            return "\n".join(str(pid) for pid in server.clients)
        if name == "set_active_thread_percentage":
            server.limits.percentage = float(rest[0])
            return str(server.limits.percentage)
        if name == "get_active_thread_percentage":
            return str(server.limits.percentage)
        if name == "set_device_pinned_mem_limit":
            server.limits.memory[rest[0]] = rest[1]
            return ""
        if name == "get_device_pinned_mem_limit":
            return server.limits.memory.get(rest[0], "")
        return "unknown command"

    def _v2_start(self, uid: int) -> str:
        if self.multi_user:
            uid = 0
        for server in self.servers.values():
            if server.uid == uid:
                return f"server {server.pid} is there already"
            if server.clients:
                return f"server of user {server.uid} still has clients"
            self._end(server)
            break
        devices = tuple(gpu for gpu in self.visible if gpu in self._present())
        if not devices:
            return "no CUDA-capable device is detected"
        server = Server(str(uid), self._spawn(uid), uid, devices, self.defaults.copy(), starting=self._slow_start)
        self.servers[server.name] = server
        return ""

    # Protocol 3

    def _v3(self, arguments: list[str]) -> tuple[int, str]:
        words = [each for each in arguments if not each.startswith("-")]
        flags = dict(_flag(each) for each in arguments if each.startswith("--"))
        verbs: dict[str, Callable[[list[str], dict[str, str]], tuple[int, str]]] = {
            "server create": self._create_server,
            "server delete": self._delete_server,
            "server list": self._list_servers,
            "namespace create": self._create_namespace,
            "namespace set": self._set_namespace,
            "namespace delete": self._delete_namespace,
            "namespace list": self._list_namespaces,
            "client list": self._list_clients,
            "client terminate": self._terminate_client,
        }
        verb = verbs.get(" ".join(words[:2]))
        return verb(words[2:], flags) if verb is not None else (1, f"unknown command: {' '.join(arguments)}\n")

    def _create_server(self, words: list[str], flags: dict[str, str]) -> tuple[int, str]:
        name = words[0] if words else f"uid_{flags.get('uid', '')}"
        uid = int(flags.get("uid", self.owner))
        if not _NAME.fullmatch(name):
            return 1, f"invalid name {name}\n"
        if name in self.servers:
            return 1, f"server '{name}' already exists\n"
        if self.multi_user and uid != 0:
            return 1, "in multiuser mode only --uid=0 is allowed\n"
        devices = tuple(flags["allowed-devices"].split(",")) if "allowed-devices" in flags else tuple(self._present())
        if not set(devices) <= self._present():
            return 0, f"Server '{name}' created\n"  # its process ends at once, without a word here
        server = Server(name, self._spawn(uid), uid, devices, starting=self._slow_start)
        server.namespaces["default"] = server.limits
        self.servers[name] = server
        return 0, f"Server '{name}' created\n"

    def _delete_server(self, words: list[str], flags: dict[str, str]) -> tuple[int, str]:
        server = self.servers.get(words[0]) if words else None
        if server is None:
            return 1, "no such server\n"
        if server.clients and "force" not in flags:
            return 1, f"server '{server.name}' has active clients\n"
        self._end(server)
        return 0, ""

    def _list_servers(self, _words: list[str], _flags: dict[str, str]) -> tuple[int, str]:
        words = {"ACTIVE": "Ready", "FAULT": "Fault", "INITIALIZING": "Initializing"}  # open: all but Ready
        return 0, "".join(
            f"{s.name},{s.uid},{s.pid},{words[s.state]},/run/{s.name},{_quoted(','.join(s.devices))},-\n"
            for s in self.servers.values()
        )

    def _namespace(self, words: list[str], flags: dict[str, str]) -> tuple[Server | None, str]:
        return self.servers.get(flags.get("server", "")), words[0] if words else ""

    def _create_namespace(self, words: list[str], flags: dict[str, str]) -> tuple[int, str]:
        server, name = self._namespace(words, flags)
        if server is None or not _NAME.fullmatch(name) or flags.keys() - {"server"}:
            return 1, "usage: namespace create <name> --server=<s>\n"
        if name in server.namespaces:
            return 1, f"namespace '{name}' already exists\n"
        server.namespaces[name] = Limits()  # nothing is inherited from the server
        return 0, ""

    def _set_namespace(self, words: list[str], flags: dict[str, str]) -> tuple[int, str]:
        server, name = self._namespace(words, flags)
        known = {"pinned-memory-limit", "active-thread-percentage", "client-priority"}
        if (
            server is None
            or name not in server.namespaces
            or not flags.keys() & known
            or flags.keys() - known - {"server"}
        ):
            return 1, "usage: namespace set <name> --server=<s> --<limit>=<value>\n"
        limits = server.namespaces[name]
        if "active-thread-percentage" in flags:
            limits.percentage = float(flags["active-thread-percentage"])
        if "pinned-memory-limit" in flags:
            if not _SIZE.fullmatch(flags["pinned-memory-limit"]):
                return 1, "invalid limit\n"
            limits.memory[""] = flags["pinned-memory-limit"]
        return 0, ""

    def _delete_namespace(self, words: list[str], flags: dict[str, str]) -> tuple[int, str]:
        server, name = self._namespace(words, flags)
        if server is None or name == "default" or name not in server.namespaces:
            return 1, "no such namespace\n"
        inside = [client.pid for client in server.clients.values() if client.namespace == name]
        if inside and "force" not in flags:
            return 1, f"namespace '{name}' has active clients\n"
        for pid in inside:
            self.disconnect(pid)
        del server.namespaces[name]
        return 0, ""

    def _list_namespaces(self, _words: list[str], _flags: dict[str, str]) -> tuple[int, str]:
        return 0, "".join(
            f"{name},{server.name},Ready,{limits.memory.get('', '-')},{limits.percentage:.2f},0,/run/{name}\n"
            for server in self.servers.values()
            for name, limits in server.namespaces.items()
        )

    def _list_clients(self, _words: list[str], _flags: dict[str, str]) -> tuple[int, str]:
        return 0, "".join(
            # As driver 615 prints it; NVIDIA's documentation shows the namespace alone.
            f"{client.pid},{server.name},{server.devices[0]},{server.name}/{client.namespace} (0),{self.command_line}\n"
            for server in self.servers.values()
            for client in server.clients.values()
        )

    def _terminate_client(self, words: list[str], _flags: dict[str, str]) -> tuple[int, str]:
        self.disconnect(int(words[0]))
        return 0, ""

    # Clients

    def connect(self, pid: int, uid: int, *, server: str = "", namespace: str = "default") -> int:
        """Let a client connect, as CUDA does when it is initialised; return its CUDA error code, OK or WAITS."""
        self._drop_lost()
        if self.protocol == 2:
            found = self._v2_server_for(uid)
            if isinstance(found, int):
                return found
        else:
            there = self.servers.get(server)
            if there is None or namespace not in there.namespaces:
                return CONNECTION_FAILED
            if not self.multi_user and uid != there.uid:
                return NOT_PERMITTED
            found = there
        if found.starting:
            return WAITS
        if found.hit:
            return SERVER_NOT_READY
        if len(found.clients) >= self._most_clients:
            return MAX_CLIENTS_REACHED
        limits = found.namespaces[namespace] if self.protocol == 3 else found.limits
        found.clients[pid] = Client(pid, uid, namespace if self.protocol == 3 else "", limits.copy())
        return OK

    def _v2_server_for(self, uid: int) -> Server | int:
        if not self.servers and self._v2_start(uid):
            return CONNECTION_FAILED
        server = next(iter(self.servers.values()))
        if self.multi_user or server.uid == uid:
            return server
        if server.clients:
            return WAITS
        self._end(server)
        return CONNECTION_FAILED if self._v2_start(uid) else next(iter(self.servers.values()))

    def disconnect(self, pid: int) -> None:
        """Let a client leave. A server that was in FAULT is ACTIVE again when the last that was hit has left."""
        for server in self.servers.values():
            server.clients.pop(pid, None)
            server.hit.discard(pid)

    def fault(self, pid: int) -> None:
        """Let a client make a fatal fault: all clients of its server are hit."""
        for server in self.servers.values():
            if pid in server.clients:
                server.hit = set(server.clients)

    def memory_mib(self, pid: int, gpu: str) -> float | None:
        """Return what a client may allocate on a GPU in MiB, None: all of it."""
        for server in self.servers.values():
            if pid in server.clients:
                limit = server.clients[pid].limits.memory.get("" if self.protocol == 3 else gpu)
                found = _SIZE.fullmatch(limit or "")
                return int(found[1]) * _MIB[found[2]] if found else None
        raise KeyError(pid)


def _flag(text: str) -> tuple[str, str]:
    name, _, value = text.removeprefix("--").partition("=")
    return name, value


def _quoted(text: str) -> str:
    return f'"{text}"' if "," in text else text
