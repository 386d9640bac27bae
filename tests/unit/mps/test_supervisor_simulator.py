"""Days on a node, drawn by chance: shares come and go, clients run and fault, GPUs are lost, everything is killed.

After each cycle the node must look as the oracle says, which knows nothing of steps or history; after the last one
nothing may be left. Planted faults show that the simulator would see such things.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.mps.planning import plan as plan_module
from dracaena.mps.planning.state import ComputeMode, MpsStep, SeenGpu, StepKind, WantedGpu
from dracaena.mps.protocol.v3 import server_name
from support.mps_node import GPUS, MpsNode
from support.mps_oracle import Asked, differences
from support.mps_world import Killed
from support.seeds import in_tiers

CYCLES = 120
MOST_SHARES = 4
"""A GPU: enough for arrivals and departures to meet."""


class Simulation:
    def __init__(self, root: Path, protocol: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = MpsNode(root, protocol)
        self.asked: dict[str, Asked] = {}
        self.clients: dict[int, str] = {}
        self.shares = self.pids = 0
        self.spoiled: dict[str, int] = {}
        """Pipe folders whose sockets were removed or replaced in this cycle → pid of the daemon."""
        self.rough = False
        """Whether something happened in this cycle that may cost daemons their lives."""
        self.meanwhile = False
        """Whether sockets were changed while a daemon was asked: nobody sees that before whoever took its place."""

    def cycle(self) -> list[str]:
        """Let something happen, maybe a crash in the middle of what follows, and return what is wrong afterwards."""
        self.spoiled, self.rough, self.meanwhile, self.node.world.misled = {}, False, False, False
        for _ in range(self.random.randint(1, 3)):
            self.random.choices(
                [
                    self.come,
                    self.go,
                    self.client,
                    self.leave,
                    self.fault,
                    self.kill,
                    self.lose,
                    self.silence,
                    self.spoil,
                ],
                [12, 10, 8, 6, 2, 4, 1, 1, 2],
            )[0]()
        fuse = self.random.randrange(60) if self.random.random() < 0.3 else -1

        def effect(_what: str) -> None:
            nonlocal fuse
            fuse -= 1
            if fuse == 0:
                raise Killed

        self.node.world.effect = effect
        if self.random.random() < 0.2:
            self.node.world.asking = self.spoil_later()
        try:
            self.node.settle(rounds=4)
        except Killed:
            self.rough = True
            if self.random.random() < 0.5:
                self.node.world.kill_all()
            self.node.start()
        self.node.world.effect = lambda _what: None
        self.node.world.asking = lambda _command: None
        self.end_the_hit()
        self.find_again()
        self.node.settle()
        return differences(self.node, self.asked) or self.ended_for_their_sockets()

    def ended_for_their_sockets(self) -> list[str]:
        daemons = self.node.world.daemons
        ended = [pipes for pipes, pid in self.spoiled.items() if pipes in daemons and daemons[pipes].pid != pid]
        wrong = [] if self.rough else [f"the daemon of {pipes} was ended, and it was well" for pipes in ended]
        is_misled = self.node.world.misled and not self.meanwhile
        return [*wrong, "an impostor was talked to"] if is_misled else wrong

    def come(self) -> None:
        number = self.random.randrange(len(GPUS))
        if sum(each.gpu == GPUS[number] for each in self.asked.values()) >= MOST_SHARES:
            return
        self.shares += 1
        percentage, memory = self.random.choice([None, 10, 25, 50]), self.random.choice([512, 1024, 8192])
        name = self.node.ask(number, f"s{self.shares}", percentage=percentage, memory=memory)
        self.asked[name] = Asked(GPUS[number], percentage, memory)

    def go(self) -> None:
        if not self.asked:
            return
        name = self.random.choice(sorted(self.asked))
        for pid in [pid for pid, of in self.clients.items() if of == name]:
            if self.random.random() < 0.8:  # else a process outlives its claim, as one that hangs does
                self.end(pid)
            else:
                del self.clients[pid]
        self.node.withdraw(name)
        del self.asked[name]

    def client(self) -> None:
        ready = [name for name, status in self.node.statuses().items() if status.mounts and name in self.asked]
        if not ready:
            return
        name = self.random.choice(ready)
        gpu = self.asked[name].gpu
        model = self.node.world.server_model(gpu)
        self.pids += 1
        pid = 100_000 + self.pids
        if model is not None and model.connect(pid, 0, server=server_name(gpu), namespace=name) == 0:
            self.clients[pid] = name

    def leave(self) -> None:
        if self.clients:
            self.end(self.random.choice(sorted(self.clients)))

    def end(self, pid: int) -> None:
        del self.clients[pid]
        for daemon in self.node.world.daemons.values():
            daemon.model.disconnect(pid)

    def fault(self) -> None:
        self.rough = True
        if self.clients:
            pid = self.random.choice(sorted(self.clients))
            for daemon in self.node.world.daemons.values():
                daemon.model.fault(pid)

    def end_the_hit(self) -> None:
        """Clients that a fault hit end by themselves: each CUDA call of theirs fails."""
        for daemon in self.node.world.daemons.values():
            for server in list(daemon.model.servers.values()):
                for pid in list(server.hit):
                    daemon.model.disconnect(pid)
                    self.clients.pop(pid, None)

    def kill(self) -> None:
        self.rough = True
        processes = self.node.world.find()
        what = self.random.randrange(4)
        if what == 0 and processes:
            self.node.world.end(self.random.choice(processes).pid)
        elif what == 1:
            self.node.world.kill_daemons()
        elif what == 2:
            self.node.world.reload_driver()
        else:
            self.node.start()

    def lose(self) -> None:
        """A GPU falls off the bus."""
        self.rough = True
        self.node.world.lost.add(self.random.choice(GPUS))

    def find_again(self) -> None:
        """Lost GPUs are reset and come back, in the driver's default mode or as they were."""
        for gpu in sorted(self.node.world.lost):
            if self.random.random() < 0.5:
                self.node.world.modes[gpu] = ComputeMode.DEFAULT
        self.node.world.lost.clear()

    def spoil(self) -> None:
        """The sockets of daemons are removed or replaced."""
        self.spoiled = {pipes: each.pid for pipes, each in self.node.world.daemons.items()}
        self.node.world.spoil_sockets(replace=self.random.random() < 0.5)

    def spoil_later(self) -> Callable[[str], None]:
        """The same in the middle of what the supervisor does, once it keeps the sockets of all daemons."""
        commands, replaced = self.random.randrange(12), self.random.random() < 0.5
        kept = Path(self.node.places.root) / "kept"

        def spoil(_command: str) -> None:
            nonlocal commands
            commands -= 1
            daemons = self.node.world.daemons
            if commands <= 0 and not self.meanwhile and all((kept / Path(pipes).name).exists() for pipes in daemons):
                self.meanwhile = True
                self.spoiled |= {pipes: each.pid for pipes, each in daemons.items()}
                self.node.world.spoil_sockets(replace=replaced)

        return spoil

    def silence(self) -> None:
        """A daemon gives no answer any more, or rubbish."""
        self.rough = True
        if self.node.world.daemons:
            pipes = self.random.choice(sorted(self.node.world.daemons))
            self.random.choice([self.node.world.hangs, self.node.world.babbles]).add(pipes)

    def end_of_all(self) -> list[str]:
        for name in list(self.asked):
            self.node.withdraw(name)
        self.asked.clear()
        self.node.settle()
        return self.node.left()


def simulate(root: Path, protocol: int, seed: int, cycles: int) -> list[str]:
    """Return what was wrong first, with the cycle; nothing when all was well."""
    simulation = Simulation(root, protocol, seed)
    for cycle in range(cycles):
        wrong = simulation.cycle()
        if wrong:
            return [f"cycle {cycle}", *wrong]
    return simulation.end_of_all()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cycles", in_tiers(30, 300, 1_000))
def test_any_number_of_cycles_leaves_nothing(tmp_path: Path, protocol: int, seed: int, cycles: int) -> None:
    assert simulate(tmp_path, protocol, seed, cycles) == []


def without(kind: StepKind) -> Callable[[str, WantedGpu, SeenGpu, int], tuple[MpsStep, ...]]:
    """Return a planner that has forgotten one kind of step."""
    plan_gpu = plan_module.plan_gpu

    def forgetful(gpu: str, wanted: WantedGpu, seen: SeenGpu, protocol: int) -> tuple[MpsStep, ...]:
        return tuple(step for step in plan_gpu(gpu, wanted, seen, protocol) if step.kind is not kind)

    return forgetful


@pytest.mark.search
@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (2, StepKind.SET_MODE), (2, StepKind.JOURNAL_MODE), (2, StepKind.RESTORE_MODE), (2, StepKind.FORGET_MODE),
        (2, StepKind.SET_DEFAULTS), (2, StepKind.SET_OF_SERVER), (2, StepKind.KILL), (2, StepKind.STOP_DAEMON),
        (2, StepKind.REMOVE_FOLDERS), (2, StepKind.MOUNT_SHM), (2, StepKind.UNMOUNT_SHM), (2, StepKind.RESTORE_PIPES),
        (2, StepKind.KEEP_PIPES), (3, StepKind.LIMIT_NAMESPACE), (3, StepKind.DELETE_NAMESPACE),
        (3, StepKind.STOP_SERVER), (3, StepKind.START_SERVER), (3, StepKind.RESTORE_MODE),
    ],
)  # fmt: skip
def test_a_planner_that_forgets_a_step_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, kind: StepKind
) -> None:
    planner = without(kind)
    monkeypatch.setattr("dracaena.mps.supervisor.plan_gpu", planner)
    monkeypatch.setattr("dracaena.mps.planning.report.plan_gpu", planner)
    assert simulate(tmp_path, protocol, 1, CYCLES) != []
