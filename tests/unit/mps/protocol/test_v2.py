"""Protocol 2: commands as NVIDIA's pages spell them, answers of any form."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.mps.protocol import v2
from dracaena.mps.protocol.seen import ControlAnswerError, ServerState, ShareLimits

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def test_commands_are_spelled_as_the_documentation_spells_them() -> None:
    both = ShareLimits(30, 2048)
    lines = [
        *v2.set_defaults(GPU, both), *v2.set_of_server(7, GPU, both), *v2.ask_defaults(GPU), *v2.ask_of_server(7, GPU),
        v2.list_servers(), v2.server_status(7), v2.list_clients(7), v2.start_server(0), v2.quit_daemon(),
    ]  # fmt: skip
    assert [line.standard_input for line in lines] == [
        "set_default_active_thread_percentage 30\n",
        f"set_default_device_pinned_mem_limit {GPU} 2048M\n",
        "set_active_thread_percentage 7 30\n",
        f"set_device_pinned_mem_limit 7 {GPU} 2048M\n",
        "get_default_active_thread_percentage\n",
        f"get_default_device_pinned_mem_limit {GPU}\n",
        "get_active_thread_percentage 7\n",
        f"get_device_pinned_mem_limit 7 {GPU}\n",
        "get_server_list\n",
        "get_server_status 7\n",
        "get_client_list 7\n",
        "start_server -uid 0\n",
        "quit -t 5\n",
    ]
    assert v2.start_daemon(multi_user=False).arguments == ("-d",)
    assert v2.start_daemon(multi_user=True).arguments == ("-d", "-multiuser-server")


def test_without_limits_all_threads_are_given_and_no_memory_limit_is_set() -> None:
    assert [line.standard_input for line in v2.set_defaults(GPU, ShareLimits())] == [
        "set_default_active_thread_percentage 100\n"
    ]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("ACTIVE\n", ServerState.READY),
        ("INITIALIZING", ServerState.STARTING),
        (" FAULT ", ServerState.FAULT),
        ("SLEEPING", ServerState.OTHER),
    ],
)
def test_states_are_read(word: str, state: ServerState) -> None:
    seen = v2.read_status(7, word)
    assert (seen.pid, seen.state, seen.word) == (7, state, word.strip())


@pytest.mark.parametrize(
    ("answer", "mib"), [("10G", 10240), ("512M\n", 512), ("1GB", 1024), ("", None), ("none", None)]
)
def test_memory_limits_are_read(answer: str, mib: int | None) -> None:
    assert v2.read_memory_mib(v2.ask_defaults(GPU)[1], answer) == mib


def test_lists_of_processes_are_read() -> None:
    assert v2.read_servers("") == ()
    assert v2.read_clients(7, "12\n9 12\n") == (9, 12)


@pytest.mark.parametrize("answer", ["x", "12 x", "-1", "0", "99999999999", "12;13", "١٢"])
def test_other_lists_are_refused_with_what_was_seen(answer: str) -> None:
    with pytest.raises(ControlAnswerError, match=r"answers .* to `get_server_list`, expected process ids"):
        v2.read_servers(answer)


@given(st.text())
def test_any_answer_is_read_or_refused(answer: str) -> None:
    percentage, memory = v2.ask_defaults(GPU)
    for read in (
        lambda: v2.read_servers(answer),
        lambda: v2.read_status(1, answer),
        lambda: v2.read_percentage(percentage, answer),
        lambda: v2.read_memory_mib(memory, answer),
    ):
        with contextlib.suppress(ControlAnswerError):
            read()
