"""Kubernetes' URL library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel.cost import reading_work, size_of, tenth
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import BOOL, STRING, URL, list_of, map_of
from dracaena.cel.value import Map
from dracaena.cel.values.url import Url, UrlError, check_url


def _is_url(text: str) -> bool:
    try:
        check_url(text)
    except UrlError:
        return False
    return True


def _query(url: Url) -> Map:
    return Map((name, tuple(values)) for name, values in url.parameters().items())


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


def _part(name: str, id_: str, call: Callable[[Url], str]) -> Function:
    return Function(name, (member(id_, (URL,), STRING, call),), 1)


FUNCTIONS: Final = (
    Function("url", (global_("string_to_url", (STRING,), URL, Url.parse, work=reading_work),), _text_cost),
    Function("isURL", (global_("is_url_string", (STRING,), BOOL, _is_url, work=reading_work),)),
    _part("getScheme", "url_get_scheme", lambda url: url.scheme),
    _part("getHost", "url_get_host", lambda url: url.host),
    _part("getHostname", "url_get_hostname", lambda url: url.hostname),
    _part("getPort", "url_get_port", lambda url: url.port),
    _part("getEscapedPath", "url_get_escaped_path", lambda url: url.path),
    Function("getQuery", (member("url_get_query", (URL,), map_of(STRING, list_of(STRING)), _query),), 1),
)
