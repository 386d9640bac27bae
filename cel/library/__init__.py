"""The functions that Kubernetes adds to standard CEL for device selectors, one module per library.

The authorizer's functions are left out: the device environment declares them, but has no authorizer to call them on.
"""

from typing import Final

from dracaena.cel.function import Function
from dracaena.cel.library import formats, formatting, lists, net, quantity, regex, semver, sets, strings, urls

# In the order of the reference: if the checker cannot tell, the first overload that fits may decide.
LIBRARIES: Final[tuple[Function, ...]] = (
    *urls.FUNCTIONS,
    *regex.FUNCTIONS,
    *lists.FUNCTIONS,
    *quantity.FUNCTIONS,
    *strings.FUNCTIONS,
    *formatting.FUNCTIONS,
    *sets.FUNCTIONS,
    *net.FUNCTIONS,
    *formats.FUNCTIONS,
    *semver.FUNCTIONS,
)
