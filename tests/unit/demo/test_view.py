from __future__ import annotations

import pytest

from dracaena.demo.observation import Observation, read_observation
from dracaena.demo.view import View, fold, spans
from support.observation import LARGE, SMALL, claim, cut_slice, one_pod, part, pod


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((1, 0), "0-1"), ((0, 1, 2, 5, 7, 6), "0-2,5-7"), ((0, 2), "0,2")]
)
def test_neighbours_are_drawn_together(numbers: tuple[int, ...], text: str) -> None:
    assert spans(numbers) == text


def test_long_lines_break_after_commas_only() -> None:
    assert fold("aaa,bbb,ccc", 8) == ["aaa,bbb,", "ccc"]
    assert fold("aaaaaaaaaaaa,b", 4) == ["aaaaaaaaaaaa,", "b"]
    assert fold("", 4) == [""]
    assert "".join(fold("x,y,,z,", 2)) == "x,y,,z,"


def plain_view() -> View:
    return View(plain=True, elapsed_s=lambda: 1.5)


def test_plain_lines_tell_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    states: list[Observation] = [
        one_pod(pod("p1", "c1"), claim("c1")),
        one_pod(pod("p1", "c1"), claim("c1")),
        one_pod(pod("p1", "c1", node="n1"), claim("c1", 0, 1)),
        one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1)),
    ]
    with plain_view().following() as follow:
        for state in states:
            follow(state)
    assert capsys.readouterr().out.splitlines() == [
        "    1.5 s  p1        2 GPUs   Pending     no node",
        "    1.5 s  p1        2 GPUs   Preparing   n1 GPU 10-11  1 × NV2",
        "    1.5 s  p1        2 GPUs   Running     n1 GPU 10-11  1 × NV2",
    ]


def test_plain_output_has_no_colours_and_no_blanks_at_line_ends(capsys: pytest.CaptureFixture[str]) -> None:
    view = plain_view()
    view.title("t", "x")
    view.section("s")
    seen = one_pod(pod("p1", "c1", node="n1", phase="Running"), claim("c1", 0, 1))
    view.nodes(seen.nodes, {"n1": "recording"})
    view.pods(seen.pods)
    view.tree("after", seen.nodes[0])
    view.checks([("holds", ()), ("does not", ("why",))])
    view.document("file", "a" * 300)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "✓ holds" in out
    assert "✗ does not" in out
    assert "[p1]" in out
    assert "[free]" in out


def test_the_slices_of_a_gpu_that_is_cut_are_drawn_below_its_tree(capsys: pytest.CaptureFixture[str]) -> None:
    claims = [part("a", SMALL, pod="p1"), part("b", LARGE, pod="p2")]
    (node,) = read_observation([cut_slice("n1")], claims, [], []).nodes
    plain_view().tree("n1", node)
    *_, drawn, first, second = capsys.readouterr().out.splitlines()
    assert drawn == "  GPU0  [3g───────── ·  ·  1g ·]"
    assert (first, second) == ("    3g.40gb at 0  [p2]", "    1g.10gb at 6  [p1]")
