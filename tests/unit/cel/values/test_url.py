from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.errors import EvaluationError
from dracaena.cel.values.url import Url, UrlError, check_url


@pytest.mark.parametrize(
    ("text", "scheme", "host", "hostname", "port", "path"),
    [
        ("https://example.com:80/a", "https", "example.com:80", "example.com", "80", "/a"),
        ("HTTPS://Example.com", "https", "Example.com", "Example.com", "", ""),
        ("https://[::1]:8080/", "https", "[::1]:8080", "::1", "8080", "/"),
        ("https://[fe80::1%25en0]/", "https", "[fe80::1%en0]", "fe80::1%en0", "", "/"),
        ("https://user:pw@host/", "https", "host", "host", "", "/"),
        ("https://a@b@host/", "https", "host", "host", "", "/"),
        ("/path", "", "", "", "", "/path"),
        ("//host/path", "", "host", "host", "", "/path"),
        ("///path", "", "", "", "", "///path"),
        ("mailto:a@b", "mailto", "", "", "", ""),
        ("file:///etc", "file", "", "", "", "/etc"),
        ("*", "", "", "", "", "*"),
        ("https://h/a b", "https", "h", "h", "", "/a%20b"),
        ("https://h/%7e%2F", "https", "h", "h", "", "/%7e%2F"),
        ("https://h/ü", "https", "h", "h", "", "/%C3%BC"),
        ("https://h%C3%BC/", "https", "hü", "hü", "", "/"),
        ("foo://a:1:2/", "foo", "a:1:2", "a:1", "2", "/"),
    ],
)
def test_the_parts_of_a_url(text: str, scheme: str, host: str, hostname: str, port: str, path: str) -> None:
    url = Url.parse(text)
    assert (url.scheme, url.host, url.hostname, url.port, url.path) == (scheme, host, hostname, port, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty url"),
        ("path", "invalid URI for request"),
        (":x", "missing protocol scheme"),
        ("https://h/\x7f", "invalid control character in URL"),
        ("https://h:x/", 'invalid port ":x" after host'),
        ("https://a:1:2/", 'invalid port ":1:2" after host'),
        ("https://[::1/", "missing ']' in host"),
        ("https://a[::1]/", "invalid IP-literal"),
        ("https://[1.2.3.4]/", "invalid IP-literal"),
        ("https://[x]/", "invalid host"),
        ("https://h/%zz", 'invalid URL escape "%zz"'),
        ("https://h%41/", 'invalid URL escape "%41"'),
        ("https://a b/", 'invalid character " " in host name'),
        ("https://ü@h/", "invalid userinfo"),
    ],
)
def test_what_is_no_url_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(EvaluationError) as refused:
        Url.parse(text)
    assert refused.value.message.startswith("URL parse error during conversion from string: parse ")
    assert reason in refused.value.message
    with pytest.raises(UrlError):
        check_url(text)


def test_parameters_are_unescaped_and_broken_ones_left_out() -> None:
    url = Url.parse("/p?k1=a&k2=b&k2=c&x+y=%C3%BC&a;b=1&%zz=1&=v&w&&%ff")
    assert url.parameters() == {"k1": ["a"], "k2": ["b", "c"], "x y": ["ü"], "": ["v"], "w": [""], "\ufffd": [""]}


def test_urls_are_equal_by_their_canonical_text() -> None:
    assert Url.parse("HTTP://h/a b") == Url.parse("http://h/a%20b")
    assert Url.parse("http://h/?") != Url.parse("http://h/")
    assert Url.parse("http://h/a#f") != Url.parse("http://h/a")
    assert Url.parse("file:///x") != Url.parse("file:/x")


@settings(derandomize=True)
@given(st.text(max_size=12).filter(lambda text: all(character >= " " and character != "\x7f" for character in text)))
def test_a_path_that_was_escaped_says_what_it_said(text: str) -> None:
    url = Url.parse("/" + quote(text, safe="/"))
    assert unquote(url.path) == "/" + text
    assert Url.parse(str(url)) == url


@settings(derandomize=True)
@given(st.text("ab:/@?#[]%2fé .1\x01&=+", max_size=16))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    try:
        url = Url.parse(text)
    except EvaluationError:
        return
    if url.scheme and url.host:
        again = Url.parse(str(url))
        assert (again.scheme, again.host, again.path) == (url.scheme, url.host, url.path)
