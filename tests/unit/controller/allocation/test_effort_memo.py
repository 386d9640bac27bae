from __future__ import annotations

from dracaena.controller.allocation.effort import Memo


def test_a_result_is_computed_once_and_the_one_not_asked_for_longest_goes_first() -> None:
    computed: list[str] = []
    memo: Memo[str, str] = Memo(2)

    def ask(key: str) -> str:
        def compute() -> str:
            computed.append(key)
            return key.upper()

        return memo.get(key, compute)

    assert [ask(key) for key in ("a", "b", "a", "c", "a", "b")] == ["A", "B", "A", "C", "A", "B"]
    assert computed == ["a", "b", "c", "b"]
    assert len(memo) == 2
