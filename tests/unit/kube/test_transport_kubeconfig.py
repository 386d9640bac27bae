"""A kubeconfig that is wrong ends in one sentence, and never in a traceback or in anonymous requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.api.errors import BadInputError
from dracaena.kube.transport import Transport, context_namespace


def kubeconfig(folder: Path, **changes: Any) -> str:
    """Write a kubeconfig that is right but for `changes` at its top level."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document | changes))
    return str(path)


def user(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "u", "user": fields}]


def cluster(server: Any) -> list[dict[str, Any]]:
    return [{"name": "k", "cluster": {"server": server}}]


def refusal(path: str) -> str:
    with pytest.raises(BadInputError, match=r"^no connection to Kubernetes from ") as caught:
        Transport.from_kubeconfig(path, user_agent="tests")
    return str(caught.value)


def test_a_kubeconfig_that_is_right_is_taken(tmp_path: Path) -> None:
    Transport.from_kubeconfig(kubeconfig(tmp_path), user_agent="tests")


def test_a_kubeconfig_whose_context_names_no_user_is_taken(tmp_path: Path) -> None:
    contexts = [{"name": "c", "context": {"cluster": "k"}}]
    Transport.from_kubeconfig(kubeconfig(tmp_path, contexts=contexts, users=[]), user_agent="tests")


def test_a_file_that_does_not_exist_is_named_as_such(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert refusal(missing).endswith(f"no such file: {missing}")


def test_one_existing_file_of_several_is_enough(tmp_path: Path) -> None:
    Transport.from_kubeconfig(f"{tmp_path / 'missing'}:{kubeconfig(tmp_path)}", user_agent="tests")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"users": []}, "for user 'u'"),
        ({"users": user(**{"auth-provider": {"name": "gcp"}})}, "auth-provider 'gcp', expected exec, a token"),
        ({"users": user(exec={"command": "no-such-command", "apiVersion": "v1"})}, "'no-such-command' gave no cred"),
        ({"clusters": cluster("")}, "the cluster's server is '', expected https://HOST:PORT"),
        ({"clusters": cluster("ftp://host")}, "'ftp://host', expected https://HOST:PORT"),
        ({"clusters": cluster(5)}, "'int' object"),
        ({"clusters": 7}, "'int' object"),
        ({"contexts": [{"name": "c", "context": 5}]}, "'int' object"),
        ({"users": user(**{"client-certificate": "/nonexistent"})}, "/nonexistent"),
    ],
)
def test_what_the_official_client_passes_over_or_stumbles_at_is_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert expected in refusal(kubeconfig(tmp_path, **changes))


def two_contexts(folder: Path) -> str:
    contexts = [
        {"name": "c", "context": {"cluster": "k", "user": "u"}},
        {"name": "other", "context": {"cluster": "k2", "user": "u", "namespace": "research"}},
    ]
    second = {"name": "k2", "cluster": {"server": "ftp://second"}}
    return kubeconfig(folder, contexts=contexts, clusters=[*cluster("https://127.0.0.1:1"), second])


def test_a_context_that_is_named_holds_in_place_of_the_current_one(tmp_path: Path) -> None:
    path = two_contexts(tmp_path)
    Transport.from_kubeconfig(path, user_agent="tests", context="c")
    with pytest.raises(BadInputError, match="'ftp://second', expected https"):
        Transport.from_kubeconfig(path, user_agent="tests", context="other")
    assert (context_namespace(path), context_namespace(path, "other")) == ("default", "research")


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = two_contexts(tmp_path)
    with pytest.raises(BadInputError, match=r"Expected object with name none in .*/contexts list"):
        Transport.from_kubeconfig(path, user_agent="tests", context="none")
    assert context_namespace(path, "none") == "default"


@pytest.mark.parametrize("context", [5, None, [], {"cluster": "k"}, {"namespace": ""}])
def test_a_context_without_a_namespace_means_default(context: Any, tmp_path: Path) -> None:
    assert context_namespace(kubeconfig(tmp_path, contexts=[{"name": "c", "context": context}])) == "default"
