"""Protocol 3: commands as NVIDIA's pages spell them, answers of any form."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.mps.protocol import v3
from dracaena.mps.protocol.seen import ClientSeen, ControlAnswerError, ServerSeen, ServerState, ShareLimits

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SERVER = "gpu_11111111_2222_3333_4444_555555555555"
SHARE = "s_0123456789abcdef"


def test_commands_are_spelled_as_the_documentation_spells_them() -> None:
    commands = [
        v3.start_daemon(multi_user=True), v3.start_daemon(multi_user=False), v3.quit_daemon(), v3.list_servers(),
        v3.create_server(GPU, 0), v3.delete_server(GPU), v3.create_namespace(GPU, SHARE),
        v3.limit_namespace(GPU, SHARE, ShareLimits(30, 2048)), v3.limit_namespace(GPU, SHARE, ShareLimits()),
        v3.delete_namespace(GPU, SHARE), v3.list_clients(),
    ]  # fmt: skip
    assert [str(command) for command in commands] == [
        "-d -p 3 --multiuser",
        "-d -p 3",
        "-q",
        "server list --format=csv,noheader",
        f"server create {SERVER} --uid=0 --allowed-devices={GPU}",
        f"server delete {SERVER} --force",
        f"namespace create {SHARE} --server={SERVER}",
        f"namespace set {SHARE} --server={SERVER} --active-thread-percentage=30 --pinned-memory-limit=2048M",
        f"namespace set {SHARE} --server={SERVER} --active-thread-percentage=100",
        f"namespace delete {SHARE} --server={SERVER} --force",
        "client list --all --format=csv,noheader",
    ]


@given(st.uuids())
def test_each_gpu_has_a_server_name_that_mps_takes_and_that_leads_back(number: uuid.UUID) -> None:
    name = v3.server_name(f"GPU-{number}")
    assert len(name) <= 64
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert v3.gpu_of(name) == f"GPU-{number}"


@pytest.mark.parametrize("name", ["training", "uid_1000", "gpu_1", "gpu_", "GPU_11111111_2222_3333_4444_555555555555"])
def test_servers_of_others_are_not_ours(name: str) -> None:
    assert v3.gpu_of(name) is None
    assert v3.read_servers(f"{name.lower()[:9]},0,7,Ready,/run/x,GPU-abcd,-\n") == {}


def test_servers_are_read() -> None:
    answer = f'{SERVER},0,48201,Ready,/run/{SERVER},{GPU},-\nother,1000,5,Ready,/run/o,"GPU-a,GPU-b",-\n'
    assert v3.read_servers(answer) == {GPU: ServerSeen(48201, ServerState.READY, "Ready", 0)}


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("Ready", ServerState.READY), ("ACTIVE", ServerState.READY), ("Fault", ServerState.FAULT),
        ("Initializing", ServerState.STARTING), ("Starting", ServerState.STARTING), ("Draining", ServerState.OTHER),
    ],
)  # fmt: skip
def test_states_are_read(word: str, state: ServerState) -> None:
    assert v3.read_servers(f"{SERVER},0,7,{word},/x,{GPU},-")[GPU].state is state


def test_namespaces_are_read_without_the_servers_own() -> None:
    answer = (
        f"default,{SERVER},Ready,-,100.00,0,/x\n{SHARE},{SERVER},Ready,4G,25.00,0,/x\ns_1,{SERVER},Ready,512M,-,0,/x\n"
        f"s_2,{SERVER},Ready,-,30,0,/x\n"
    )
    assert v3.read_namespaces(answer) == {
        (GPU, SHARE): ShareLimits(25, 4096),
        (GPU, "s_1"): ShareLimits(None, 512),
        (GPU, "s_2"): ShareLimits(30, None),
    }


def test_the_namespace_of_a_client_is_read_as_driver_615_and_as_the_documentation_print_it() -> None:
    of_615 = f"3167082,{SERVER},{GPU},{SERVER}/{SHARE} (0),VLLM::EngineCore\n"
    documented = f"3167082,{SERVER},0,{SHARE},VLLM::EngineCore\n"
    assert v3.read_clients(of_615) == v3.read_clients(documented) == {GPU: (ClientSeen(3167082, SHARE),)}
    assert v3.read_clients(of_615.replace(SHARE, "default")) == {GPU: (ClientSeen(3167082, "default"),)}


@pytest.mark.parametrize("column", ["", "a/b/c", f"{SHARE} (x)", f"x {SHARE}", f"{SHARE}/", "S_0123456789ABCDEF"])
def test_a_namespace_of_any_other_form_is_no_share(column: str) -> None:
    ((client,),) = v3.read_clients(f"7,{SERVER},0,{column},x\n").values()
    assert client.namespace == column


def test_clients_are_read_whatever_their_command_line_is() -> None:
    answer = f"52,{SERVER},0,{SHARE},python train.py --a 1,2\n51,{SERVER},0,default,\n9,other,0,default,x\n"
    assert v3.read_clients(answer) == {GPU: (ClientSeen(51, "default"), ClientSeen(52, SHARE))}


@given(st.lists(st.text()))
def test_clients_are_read_beside_lines_that_somebody_has_made_up(lines: list[str]) -> None:
    answer = "\n".join([f"52,{SERVER},0,{SHARE},python", *lines, "²,x,0,y,z", "9" * 5000 + ",x,0,y,z"])
    assert ClientSeen(52, SHARE) in v3.read_clients(answer)[GPU]


@pytest.mark.parametrize("answer", ["x", "a,b", f"{SERVER},root,7,Ready,,,", f"{SERVER},0,x,Ready,,,", "A B,0,1,R,,,"])
def test_other_server_lists_are_refused_with_what_was_seen(answer: str) -> None:
    with pytest.raises(ControlAnswerError, match="to `server list --format=csv,noheader`, expected"):
        v3.read_servers(answer)


@given(st.text())
def test_any_answer_is_read_or_refused(answer: str) -> None:
    for read in (v3.read_servers, v3.read_namespaces, v3.read_clients):
        with contextlib.suppress(ControlAnswerError):
            read(answer)
    v3.knows_protocol_3(answer)


def test_protocol_3_is_known_by_its_modules() -> None:
    assert v3.knows_protocol_3("Modules: server, namespace, client, device, sm-partition")
    assert not v3.knows_protocol_3("nvidia-cuda-mps-control [-d | -f] [-multiuser-server]")
