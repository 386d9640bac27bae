"""Kubernetes' libraries for IP addresses and networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel.cost import reading_work, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import BOOL, CIDR, INT, IP, STRING
from dracaena.cel.values.ip import Address, Network


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def parses(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return parses


def _is_canonical(text: str) -> bool:
    return str(Address.parse(text)) == text


def _contains_address_text(network: Network, text: str) -> bool:
    return network.contains_address(Address.parse(text))


def _contains_network_text(network: Network, text: str) -> bool:
    return network.contains_network(Network.parse(text))


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


def _ip_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    """From a network, the address is only extracted; text is parsed."""
    return 1 if isinstance(arguments[0], Network) else tenth(size_of(arguments[0]))


def _canonical_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(2 * size_of(arguments[0]))


def _contains_address_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(2 * size_of(arguments[0])) + _parse_cost(arguments[1])


def _contains_network_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    size = size_of(arguments[0])
    return tenth(2 * size) + tenth(size) + 1 + _parse_cost(arguments[1])


def _reading_second(_network: Network, text: str) -> int:
    return reading_work(text)


def _parse_cost(argument: Any) -> int:
    return tenth(len(argument)) if isinstance(argument, str) else 0


def _of_address(name: str, id_: str, call: Callable[[Address], bool]) -> Function:
    return Function(name, (member(id_, (IP,), BOOL, call),), 1)


FUNCTIONS: Final = (
    Function(
        "ip",
        (
            global_("string_to_ip", (STRING,), IP, Address.parse, work=reading_work),
            member("cidr_ip", (CIDR,), IP, lambda network: Address(network.address)),
        ),
        _ip_cost,
    ),
    Function("isIP", (global_("is_ip", (STRING,), BOOL, _parses(Address.parse), work=reading_work),), _text_cost),
    Function(
        "ip.isCanonical",
        (global_("ip_is_canonical", (STRING,), BOOL, _is_canonical, work=reading_work),),
        _canonical_cost,
    ),
    Function("family", (member("ip_family", (IP,), INT, lambda ip: ip.family),), 1),
    _of_address("isUnspecified", "ip_is_unspecified", lambda ip: ip.address.is_unspecified),
    _of_address("isLoopback", "ip_is_loopback", lambda ip: ip.address.is_loopback),
    _of_address("isLinkLocalMulticast", "ip_is_link_local_multicast", lambda ip: ip.is_link_local_multicast),
    _of_address("isLinkLocalUnicast", "ip_is_link_local_unicast", lambda ip: ip.is_link_local_unicast),
    _of_address("isGlobalUnicast", "ip_is_global_unicast", lambda ip: ip.is_global_unicast),
    Function("cidr", (global_("string_to_cidr", (STRING,), CIDR, Network.parse, work=reading_work),), _text_cost),
    Function("isCIDR", (global_("is_cidr", (STRING,), BOOL, _parses(Network.parse), work=reading_work),), _text_cost),
    Function(
        "containsIP",
        (
            member("cidr_contains_ip_string", (CIDR, STRING), BOOL, _contains_address_text, work=_reading_second),
            member("cidr_contains_ip_ip", (CIDR, IP), BOOL, Network.contains_address),
        ),
        _contains_address_cost,
    ),
    Function(
        "containsCIDR",
        (
            member("cidr_contains_cidr_string", (CIDR, STRING), BOOL, _contains_network_text, work=_reading_second),
            member("cidr_contains_cidr", (CIDR, CIDR), BOOL, Network.contains_network),
        ),
        _contains_network_cost,
    ),
    Function("prefixLength", (member("cidr_prefix_length", (CIDR,), INT, lambda network: network.prefix_length),), 1),
    Function("masked", (member("cidr_masked", (CIDR,), CIDR, Network.masked),), 1),
    Function(
        "string",
        (global_("ip_to_string", (IP,), STRING, str), global_("cidr_to_string", (CIDR,), STRING, str)),
    ),
)
