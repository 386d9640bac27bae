"""Watches.

Left out: sendInitialEvents=true, which nothing of ours asks for, and which kube-apiserver refuses where its etcd cannot
be asked for the progress of one watch (before 3.4.31 and 3.5.13).
"""

from __future__ import annotations

from transcripts.scenarios.documents import CLAIMS, PODS, claim, pod
from transcripts.session import Session


def watch_and_resume(api: Session) -> None:
    """A watch from a list's version shows every write after it, and one from an event's goes on there."""
    api.create("before the list", CLAIMS, claim("a"))
    version = api.get("the list", CLAIMS)["metadata"]["resourceVersion"]
    stream = api.watch("from the list on", CLAIMS, resourceVersion=version)
    api.create("a creation", CLAIMS, claim("b"))
    api.merge("a change", f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    api.merge("a change that changes nothing", f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    api.delete("a deletion", f"{CLAIMS}/a")
    events = stream.take(3, "three writes")
    resumed = api.watch(
        "from the first event on", CLAIMS, resourceVersion=events[0]["object"]["metadata"]["resourceVersion"]
    )
    resumed.take(2, "the other two")


def watch_from_the_present(api: Session) -> None:
    """Without a version, or with version 0, a watch begins with what is there."""
    api.create("there already", CLAIMS, claim("b"))
    api.create("there too", CLAIMS, claim("a"))
    stream = api.watch("without a version", CLAIMS)
    stream.take(2, "what is there")
    stream = api.watch("of any version", CLAIMS, resourceVersion=0)
    stream.take(2, "what is there")
    api.delete("a deletion", f"{CLAIMS}/b")
    stream.take(1, "what comes then")


def watch_by_selectors(api: Session) -> None:
    """What stops matching is deleted for the client; what starts to match is added."""
    api.create("matches", PODS, pod("a", {"labels": {"x": "1"}}))
    version = api.create("does not", PODS, pod("b"))["metadata"]["resourceVersion"]
    labelled = api.watch("by label", PODS, labelSelector="x=1", resourceVersion=version)
    bound = api.watch("by field", PODS, fieldSelector="spec.nodeName=node-a", resourceVersion=version)
    api.merge("a stops matching", f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}})
    api.merge("b starts", f"{PODS}/b", {"metadata": {"labels": {"x": "1"}}})
    target = {"metadata": {"name": "b"}, "target": {"kind": "Node", "name": "node-a"}}
    api.create("b is bound", f"{PODS}/b/binding", target)
    api.delete("b ends in order", f"{PODS}/b")
    api.delete("b is gone", f"{PODS}/b", gracePeriodSeconds=0)
    labelled.take(6, "by label")
    bound.take(4, "by field")


def watch_one_object(api: Session) -> None:
    """A watch of one name shows nothing else."""
    version = api.create("this one", CLAIMS, claim("a"))["metadata"]["resourceVersion"]
    api.create("another", CLAIMS, claim("b"))
    api.merge("a change", f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    stream = api.watch("by name", CLAIMS, fieldSelector="metadata.name=a", resourceVersion=version, timeoutSeconds=1)
    stream.rest("one event, then the end")


def watch_with_bookmarks(api: Session) -> None:
    """A bookmark comes two seconds before the end of a watch; one that is shorter gets none.

    Left out: what follows the first bookmark, because now and then a second one does.
    """
    version = api.create("a claim", CLAIMS, claim("a"))["metadata"]["resourceVersion"]
    wanted = {"resourceVersion": version, "allowWatchBookmarks": "true"}
    long = api.watch("four seconds", CLAIMS, **wanted, timeoutSeconds=4)
    # Only after the watch has begun: there is no bookmark of a version that its first events have shown.
    api.create("another", CLAIMS, claim("b"))
    short = api.watch("one second", CLAIMS, **wanted, timeoutSeconds=1)
    silent = api.watch("three seconds without", CLAIMS, resourceVersion=version, timeoutSeconds=3)
    short.rest("the short one")
    long.take(2, "the long one")
    silent.rest("the one that wants none")


def watch_from_a_bad_version(api: Session) -> None:
    """A version that is forgotten is expired (410): the client must list again."""
    api.create("a claim", CLAIMS, claim("a"))
    api.forget_history("a compaction")
    # The version is 1, because a server may still hold the latest ones for its own reasons.
    stream = api.watch("from the first version on", CLAIMS, resourceVersion=1)
    stream.rest("refused inside the stream")
    api.get("a version that is no number", CLAIMS, watch="true", resourceVersion="x")
    api.get("a match without initial events", CLAIMS, watch="true", resourceVersionMatch="NotOlderThan")
    api.get("initial events without a match", CLAIMS, watch="true", sendInitialEvents="true")
    api.get("a time-out that is no number", CLAIMS, watch="true", timeoutSeconds="x")
