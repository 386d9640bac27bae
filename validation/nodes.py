"""Checks node selectors (core/v1, NodeSelector)."""

from __future__ import annotations

from dracaena.validation.field import Field
from dracaena.validation.syntax import DNS_SUBDOMAIN, LABEL_KEY, LABEL_VALUE

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def check_node_selector(field: Field, *, most_terms: int | None = None) -> None:
    """Check a node selector, if there is one."""
    if field.absent:
        return
    selector = field.fields("nodeSelectorTerms")
    if selector is None:
        return
    terms = selector["nodeSelectorTerms"]
    if not terms.required("a node selector term"):
        return
    for term in terms.items(most_terms) or ():
        fields = term.fields("matchExpressions", "matchFields")
        if fields is None:
            continue
        for expression in fields["matchExpressions"].items() or ():
            _check_expression(expression)
        for expression in fields["matchFields"].items() or ():
            _check_field_expression(expression)


def _check_expression(field: Field) -> None:
    expression = field.fields("key", "operator", "values")
    if expression is None:
        return
    expression["key"].name(LABEL_KEY)
    operator = expression["operator"].choice(_OPERATORS)
    values = expression["values"].items()
    if values is None:
        return
    for value in values:
        if (text := value.text()) is not None and not LABEL_VALUE.holds(text):
            value.error(f"not {LABEL_VALUE.what}", LABEL_VALUE.expected)
    if operator in ("In", "NotIn") and not values:
        expression["values"].error("missing", f"values for operator {operator}")
    if operator in ("Exists", "DoesNotExist") and values:
        expression["values"].error(f"values beside operator {operator}", "no values")
    if operator in ("Gt", "Lt") and len(values) != 1:
        expression["values"].error(f"{len(values)} values", f"one value for operator {operator}")


def _check_field_expression(field: Field) -> None:
    expression = field.fields("key", "operator", "values")
    if expression is None:
        return
    expression["key"].choice(("metadata.name",))
    expression["operator"].choice(("In", "NotIn"))
    values = expression["values"].items()
    if values is not None and len(values) != 1:
        expression["values"].error(f"{len(values)} values", "the name of one node")
    for value in values or ():
        value.name(DNS_SUBDOMAIN)
