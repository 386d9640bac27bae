"""The commands of the pages, as the tests of the chart read and type them."""

from __future__ import annotations

from pathlib import Path

from e2e.install import pages


def test_only_commands_of_the_pages_are_left_out() -> None:
    on_pages = {line for page in pages.PAGES for line in pages.commands(page)}
    assert pages.NOT_RUN_HERE.keys() - on_pages == set()
    assert all(pages.NOT_RUN_HERE.values())


def test_what_nobody_could_type_is_left_out() -> None:
    """Else it is found when the chart has been installed on a real cluster, half an hour later."""
    typed = {line for page in pages.PAGES for line in pages.commands(page)} - pages.NOT_RUN_HERE.keys()
    assert {line for line in typed if "..." in line or "<<" in line} == set()


def test_the_tests_that_type_them_instead_are_there() -> None:
    named = {word for why in pages.NOT_RUN_HERE.values() for word in why.split() if word.endswith(".py")}
    assert named
    assert [name for name in named if not pages.test_file(name).exists()] == []


PAGE = """Say `dracaena status` or `make`, `sudo make e2e`; a `kubectl` is no command and `dracaena_metric` neither.

```
$ dracaena explain pod a    # with a comment
pod default/a waits
kubectl get pods \\
  --all-namespaces
.venv/bin/dracaena version
nvidia-smi topo -m | .venv/bin/dracaena topology import -
```

```yaml
helm install nothing
```
"""


def test_commands_of_blocks_and_of_sentences_are_found_once_and_without_what_is_not_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE + "\nAgain `dracaena version`.\n", encoding="utf-8")
    assert pages.commands(page) == [
        "dracaena explain pod a",
        "kubectl get pods --all-namespaces",
        "dracaena version",
        "nvidia-smi topo -m | dracaena topology import -",
        "dracaena status",
        "make e2e",
    ]
