"""Tables as requests ask for them, where kubectl asks otherwise than the recorded scenarios."""

from __future__ import annotations

import pytest

from dracaena.demo.apiserver.errors import ApiError
from dracaena.demo.apiserver.tables.forms import TableForm, table_form

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (TABLE, "v1"),
        (f"application/yaml,{TABLE},application/json", "v1"),
        (f"application/json,{TABLE}", None),
        (TABLE.replace("v=v1", "v=v1beta1"), "v1beta1"),
        (f"{TABLE};q=0,application/json", None),
        (f"{TABLE.replace('Table', 'PartialObjectMetadata')},*/*", None),
        ("", None),
    ],
)
def test_the_first_form_that_is_served_is_taken(accept: str, version: str | None) -> None:
    form = table_form(accept, {})
    assert (form and form.version) == version


def test_what_is_no_form_of_this_server_is_not_acceptable() -> None:
    for accept in (TABLE.replace("v=v1", "v=v2"), TABLE.replace("Table", "PartialObjectMetadata"), "text/html"):
        with pytest.raises(ApiError) as refused:
            table_form(accept, {})
        assert refused.value.code == 406


def test_how_much_of_an_object_is_included_is_read_for_tables_alone() -> None:
    assert table_form(TABLE, {"includeObject": "None"}) == TableForm("v1", "None")
    assert table_form("application/json", {"includeObject": "All"}) is None
    with pytest.raises(ApiError, match="is Metadata, Object, None or empty, not 'All'"):
        table_form(TABLE, {"includeObject": "All"})
