"""Checks node selectors (core/v1, NodeSelector)."""

from __future__ import annotations

from dracaena.validation.field import Field
from dracaena.validation.findings import Breach
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
    items = terms.items() or []
    if most_terms is not None and len(items) > most_terms:
        terms.error("too many terms", f"at most {most_terms}")
    for term in items:
        check_node_selector_term(term)


def check_node_selector_term(field: Field, *, any_value: bool = False) -> None:
    """Check one term. `any_value`: values that no label can have are accepted, as in a preference."""
    fields = field.fields("matchExpressions", "matchFields")
    if fields is None:
        return
    for expression in fields["matchExpressions"].items() or ():
        _check_expression(expression, any_value=any_value)
    for expression in fields["matchFields"].items() or ():
        _check_field_expression(expression)


def _check_expression(field: Field, *, any_value: bool) -> None:
    expression = field.fields("key", "operator", "values")
    if expression is None:
        return
    expression["key"].name(LABEL_KEY)
    operator = expression["operator"].choice(_OPERATORS, Breach.INVALID)
    values = expression["values"].items()
    if values is None:
        return
    for value in values:
        if (text := value.text()) is not None and not any_value and not LABEL_VALUE.holds(text):
            value.error(f"not {LABEL_VALUE.what}", LABEL_VALUE.expected)
    if operator in ("In", "NotIn") and not values:
        expression["values"].error("missing", f"values for operator {operator}", breach=Breach.REQUIRED)
    if operator in ("Exists", "DoesNotExist") and values:
        expression["values"].error(f"values beside operator {operator}", "no values", breach=Breach.FORBIDDEN)
    if operator in ("Gt", "Lt") and len(values) != 1:
        expected = f"one value for operator {operator}"
        expression["values"].error(f"{len(values)} values", expected, breach=Breach.REQUIRED)


def _check_field_expression(field: Field) -> None:
    expression = field.fields("key", "operator", "values")
    if expression is None:
        return
    key = expression["key"].choice(("metadata.name",), Breach.INVALID)
    operator = expression["operator"].choice(("In", "NotIn"), Breach.INVALID)
    values = expression["values"].items()
    if operator is not None and values is not None and len(values) != 1:
        expression["values"].error(f"{len(values)} values", "the name of one node", breach=Breach.REQUIRED)
    for value in values or () if key is not None else ():
        value.name(DNS_SUBDOMAIN)
