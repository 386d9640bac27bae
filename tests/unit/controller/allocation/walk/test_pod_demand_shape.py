from __future__ import annotations

from dracaena.controller.allocation.walk.pod_demand import DIGEST_BYTES, shape
from support.allocation import claim, pod


def test_a_shape_is_short_however_long_the_pod_is_and_tells_pods_apart() -> None:
    """Shapes are kept as keys of a thousand explanations and of each line: whole texts would be a gigabyte."""
    terms = [{"matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]} for number in range(1_000)]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    first, second, other = pod("p", "c", affinity=affinity), pod("q", "c", affinity=affinity), pod("r", "c")
    assert shape(first, [claim("c")]) == shape(second, [claim("c")])
    assert len(shape(first, [claim("c")])) == DIGEST_BYTES
    assert len({shape(first, [claim("c")]), shape(first, ()), shape(other, [claim("c")]), shape(other, ())}) == 4
