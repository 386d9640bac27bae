from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.errors import EvaluationError
from dracaena.cel.values.ip import Address, Network

PLAIN = [
    st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address),
    st.integers(2**48, 2**128 - 1).map(ipaddress.IPv6Address),  # below are those that hold an IPv4 address
    st.integers(0, 0xFFFF).map(ipaddress.IPv6Address),
    st.integers(0, 0xFFFF).map(lambda low: ipaddress.IPv4Address(0x0A000000 | low)),
]
ADDRESSES = st.one_of(*PLAIN)


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    address = draw(ADDRESSES)
    text = f"{address}/{draw(st.integers(0, address.max_prefixlen))}"
    return text, ipaddress.ip_interface(text)


@settings(derandomize=True)
@given(networks(), networks(), ADDRESSES)
def test_networks_hold_what_the_standard_library_says_they_hold(
    one: tuple[str, ipaddress.IPv4Interface], other: tuple[str, ipaddress.IPv4Interface], address: ipaddress.IPv4Address
) -> None:
    network = Network.parse(one[0])
    assert network.contains_address(Address.parse(str(address))) == (address in one[1].network)
    same_family = one[1].version == other[1].version
    assert network.contains_network(Network.parse(other[0])) == (
        same_family and other[1].network.subnet_of(one[1].network)
    )
    assert str(network.masked()) == str(one[1].network)
    assert network.masked().masked() == network.masked()
    assert network.prefix_length == one[1].network.prefixlen
    assert network.cel_size() == -(-network.prefix_length // 8)


@settings(derandomize=True)
@given(ADDRESSES)
def test_an_address_reads_what_it_writes(address: ipaddress.IPv4Address) -> None:
    parsed = Address.parse(str(address))
    assert Address.parse(str(parsed)) == parsed
    assert Address.parse(address.exploded) == parsed
    assert parsed.cel_size() == address.max_prefixlen // 8


@pytest.mark.parametrize("text", ["::ffff:1.2.3.4", "::FFFF:102:304", "0:0:0:0:0:ffff:1:2"])
def test_an_ipv4_address_in_an_ipv6_one_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="IPv4-mapped IPv6 address"):
        Address.parse(text)
    with pytest.raises(EvaluationError, match="IPv4-mapped IPv6 address"):
        Network.parse(f"{text}/96")


@pytest.mark.parametrize("text", ["fe80::1%eth0", "::1%1"])
def test_a_zone_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="with zone value is not allowed"):
        Address.parse(text)
    with pytest.raises(EvaluationError, match="IPv6 zones cannot be present"):
        Network.parse(f"{text}/64")


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.2.3", "1.2.3.4.5", "01.2.3.4", "256.1.1.1", "1.2.3.4%a", ":::", "1:2", "::1%", " ::1", "1.2.3.٤"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="parse error"):
        Address.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/08",
        "10.0.0.0/+8",
        "10.0.0.0/٨",
        "::/129",
        "/8",
        "10.0.0.0/8/8",
    ],
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="network address parse error"):
        Network.parse(text)


def test_networks_are_equal_only_with_the_bits_behind_their_prefix() -> None:
    assert Network.parse("10.0.0.1/8") != Network.parse("10.0.0.0/8")
    assert Network.parse("10.0.0.1/8").masked() == Network.parse("10.0.0.0/8")
