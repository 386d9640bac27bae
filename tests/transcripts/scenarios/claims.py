"""ResourceClaims and their templates: what a spec may say."""

from __future__ import annotations

from transcripts.scenarios.documents import (
    CLAIMS,
    CORE,
    TEMPLATES,
    allocation,
    claim,
    exactly,
    opaque,
    result,
    template,
)
from transcripts.session import Session

SUB = {"name": "sub", "deviceClassName": "gpu"}
ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def claim_defaults(api: Session) -> None:
    """What the server fills in."""
    api.create("nothing asked for", CLAIMS, claim("empty", requests=None))
    api.create("a count and a mode", CLAIMS, claim("one"))
    api.create("all devices have no count", CLAIMS, claim("all", requests=[exactly(allocationMode="All")]))
    full = claim(
        "full",
        requests=[exactly(count=2, tolerations=[{"key": "a"}]), {"name": "either", "firstAvailable": [SUB]}],
        constraints=[{"matchAttribute": "gpu.example.com/numa", "requests": ["gpus", "either"]}],
        config=[{"requests": ["either/sub"]} | opaque({"k": "v"})],
    )
    api.create("a whole one", CLAIMS, full)


def claim_requests(api: Session) -> None:
    """Requests that are refused, all causes at once."""
    requests = [
        exactly("A_"),
        {"name": "neither"},
        exactly("twice"),
        exactly("twice"),
        {"name": "both", "exactly": {"deviceClassName": "gpu"}, "firstAvailable": [SUB]},
        exactly("all", allocationMode="All", count=2),
        exactly("negative", count=-1),
        exactly("mode", allocationMode="Some"),
        {"name": "no-class", "exactly": {"deviceClassName": ""}},
        {"name": "bad-class", "exactly": {"deviceClassName": "C_"}},
        {"name": "subs", "firstAvailable": [SUB, SUB | {"count": 2}]},
        exactly("no-selector", selectors=[{}]),
    ]
    api.create("bad requests", CLAIMS, claim("c", requests=requests))
    tolerations = [
        {"key": "", "operator": "Exists", "value": "x"},
        {"key": "@", "operator": "Like", "effect": "Sometimes"},
        {"key": "z", "value": "@"},
        {"operator": "Exists"},
    ]
    api.create("bad tolerations", CLAIMS, claim("c", requests=[exactly(tolerations=tolerations)]))
    capacity = {"requests": {"9x": "1", "memory": "2Gi"}}
    api.create("a bad capacity", CLAIMS, claim("c", requests=[exactly(capacity=capacity)]))


def claim_limits(api: Session) -> None:
    """Counts and lengths."""
    api.create("33 requests", CLAIMS, claim("c", requests=[exactly(f"r{i}") for i in range(33)]))
    subs = [SUB | {"name": f"s{i}"} for i in range(9)]
    api.create("9 alternatives", CLAIMS, claim("c", requests=[{"name": "gpus", "firstAvailable": subs}]))
    selector = {"cel": {"expression": "true"}}
    api.create("33 selectors", CLAIMS, claim("c", requests=[exactly(selectors=[selector] * 33)]))
    tolerations = [{"key": f"k{i}"} for i in range(17)]
    either = {"name": "either", "firstAvailable": [SUB | {"tolerations": tolerations}]}
    api.create(
        "17 tolerations are not too many", CLAIMS, claim("c", requests=[exactly(tolerations=tolerations), either])
    )
    constraint = {"matchAttribute": "gpu.example.com/numa"}
    api.create(
        "33 constraints and configs", CLAIMS, claim("c", constraints=[constraint] * 33, config=[opaque({})] * 33)
    )


def claim_constraints_and_config(api: Session) -> None:
    """Constraints and configs that are refused, all causes at once."""
    requests = [exactly(), {"name": "either", "firstAvailable": [SUB]}]
    constraints = [
        {},
        {"matchAttribute": "nodomain"},
        {"matchAttribute": "a.b/c", "requests": ["gpus", "gpus", "other", "either/sub", "either/other", "a/b/c", "A_"]},
        {"distinctAttribute": "a.b/c"},
        {"matchAttribute": "a.b/c", "distinctAttribute": "a.b/c"},
        {"matchAttribute": ""},
    ]
    api.create("bad constraints", CLAIMS, claim("c", requests=requests, constraints=constraints))
    config = [
        {},
        {"requests": ["other"]} | opaque({}),
        opaque({}, driver=""),
        opaque({}, driver="x" * 64),
        opaque([1]),
        opaque("text"),
        opaque(None),
        opaque({"a": "x" * 10300}),
    ]
    api.create("bad configs", CLAIMS, claim("c", requests=requests, config=config))


def claim_spec_is_immutable(api: Session) -> None:
    """A spec stays as it was created."""
    api.create("a claim", CLAIMS, claim("c"))
    api.merge("the same spec", f"{CLAIMS}/c", {"spec": {"devices": {"requests": [exactly()]}}})
    api.merge("another spec", f"{CLAIMS}/c", {"spec": {"devices": {"requests": [exactly(count=2)]}}})


def admin_access(api: Session) -> None:
    """adminAccess needs a label on the namespace, at creation and at allocation."""
    api.create("without the label", CLAIMS, claim("c", requests=[exactly(adminAccess=True)]))
    api.create("false needs none", CLAIMS, claim("plain", requests=[exactly(adminAccess=False)]))
    api.create("a template", TEMPLATES, template("t", {"requests": [exactly(adminAccess=True)]}))
    status = {"status": {"allocation": allocation(result(adminAccess=True))}}
    api.merge("an allocation", f"{CLAIMS}/plain/status", status)
    api.merge("the label", CORE, {"metadata": {"labels": {ADMIN_LABEL: "true"}}})
    api.create("with the label", CLAIMS, claim("c", requests=[exactly(adminAccess=True)]))


def templates(api: Session) -> None:
    """ResourceClaimTemplates."""
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    api.create("a template", TEMPLATES, template("t", {"requests": [exactly()]}, metadata=metadata))
    api.merge("a label of its own", f"{TEMPLATES}/t", {"metadata": {"labels": {"q": "r"}}})
    api.merge("another spec", f"{TEMPLATES}/t", {"spec": {"spec": {"devices": {"requests": [exactly(count=2)]}}}})
    bad = {"name": "x", "labels": {"@": "b"}, "finalizers": ["x"]}
    api.create("bad metadata and a bad request", TEMPLATES, template("u", {"requests": [{"name": "z"}]}, metadata=bad))
    api.delete("its deletion", f"{TEMPLATES}/t")


def claims_with_mistakes_of_both_kinds(api: Session) -> None:
    """Mistakes that 1.37 finds by declared checks among others that it does not: which of them are told first."""
    true = {"cel": {"expression": "true"}}
    subs = [
        SUB | {"name": "A_"},
        SUB | {"name": "b", "deviceClassName": ""},
        SUB | {"name": "c", "deviceClassName": "C_", "allocationMode": "Some"},
        SUB | {"name": "d", "selectors": [true] * 33},
        SUB | {"name": "e", "count": -1, "tolerations": [{"operator": "Like", "key": "@"}]},
    ]
    requests = [{"name": "B_", "firstAvailable": subs}, exactly("z", selectors=[true] * 33), exactly("C_", count=-1)]
    api.create("in alternatives", CLAIMS, claim("c", requests=requests))
    names = [f"r{i}" for i in range(33)]
    constraints = [
        {"distinctAttribute": "nodomain", "requests": ["other"]},
        {"matchAttribute": f"example.com/{'x' * 33}", "requests": names},
        {"matchAttribute": "Example_.com/x"},
        {"matchAttribute": "/x"},
        {"distinctAttribute": "example.com/9x", "requests": ["gpus", "gpus"]},
    ]
    config = [
        {"requests": ["gpus", "gpus", "other"]} | opaque({}, driver="X_"),
        {"requests": names} | opaque(None, driver="Gpu.Example.com"),
        opaque("text", driver=f"{'x' * 64}_"),
    ]
    api.create("in constraints and configs", CLAIMS, claim("A_", constraints=constraints, config=config))
    api.create("capitals in the name of a driver", CLAIMS, claim("d", config=[opaque({}, driver="Gpu.Example.com")]))
    twice = template("t", {"requests": [exactly(), exactly("A_"), exactly()]})
    api.create("in a template", TEMPLATES, twice)
