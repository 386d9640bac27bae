"""IP addresses and networks, by the rules of Kubernetes: no zone, no IPv4 address inside an IPv6 one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ClassVar, Final

from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import CIDR, IP, Opaque, Type
from dracaena.cel.values.text import quoted

_BITS: Final = {4: 32, 6: 128}


@dataclass(frozen=True, slots=True)
class Address(Opaque):
    """An IP address: CEL's `ip("10.0.0.1")`."""

    address: IPv4Address | IPv6Address

    cel_type: ClassVar[Type] = IP

    @staticmethod
    def parse(text: str) -> Address:
        """Read an address. Raises EvaluationError."""
        try:
            address, zone = parse_address(text)
        except ValueError as error:
            reason = f"IP Address {quoted(text)} parse error during conversion from string: {error}"
            raise EvaluationError(reason) from None
        if zone:
            raise EvaluationError(f"IP address {quoted(text)} with zone value is not allowed")
        _refuse_ipv4_in_ipv6(address, text)
        return Address(address)

    @property
    def family(self) -> int:
        """4 or 6."""
        return self.address.version

    @property
    def is_link_local_multicast(self) -> bool:
        """224.0.0.0/24 (RFC 5771) or multicast of link-local scope (RFC 4291, 2.7)."""
        if self.family == 4:
            return int(self.address) >> 8 == 0xE00000
        return (int(self.address) >> 112) & 0xFF0F == 0xFF02

    @property
    def is_link_local_unicast(self) -> bool:
        """169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291, 2.4)."""
        return self.address.is_link_local

    @property
    def is_global_unicast(self) -> bool:
        """Neither unspecified, loopback, multicast, link-local nor IPv4 broadcast. Private addresses count."""
        address = self.address
        return not (
            address.is_unspecified
            or address.is_loopback
            or address.is_multicast
            or address.is_link_local
            or address == _BROADCAST
        )

    def cel_size(self) -> int:
        """Bytes of the address."""
        return _BITS[self.family] // 8

    def __str__(self) -> str:
        return str(self.address)


_BROADCAST: Final = IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class Network(Opaque):
    """An address with the length of its network prefix: CEL's `cidr("10.0.0.0/8")`. Bits after the prefix are kept."""

    address: IPv4Address | IPv6Address
    prefix_length: int

    cel_type: ClassVar[Type] = CIDR

    @staticmethod
    def parse(text: str) -> Network:
        """Read a network. Raises EvaluationError."""
        address_text, slash, length = text.rpartition("/")
        if not slash:
            raise _network_error(text, "no '/'")
        try:
            address, zone = parse_address(address_text)
        except ValueError as error:
            raise _network_error(text, str(error)) from None
        if zone is not None:
            raise _network_error(text, "IPv6 zones cannot be present in a prefix")
        if not _PREFIX_LENGTH.fullmatch(length):
            raise _network_error(text, f"bad bits after slash: {quoted(length)}")
        if len(length) > 3 or int(length) > _BITS[address.version]:
            raise _network_error(text, "prefix length out of range")
        _refuse_ipv4_in_ipv6(address, text, _NETWORK_ERROR)
        return Network(address, int(length))

    def masked(self) -> Network:
        """The network itself, with all bits after the prefix zero."""
        behind = _BITS[self.address.version] - self.prefix_length
        return Network(type(self.address)(int(self.address) >> behind << behind), self.prefix_length)

    def contains_address(self, other: Address) -> bool:
        """Whether the address is of the same family and begins with the prefix."""
        return self._begins(other.address)

    def contains_network(self, other: Network) -> bool:
        """Whether every address of the other network is in this one."""
        return other.prefix_length >= self.prefix_length and self._begins(other.address)

    def _begins(self, address: IPv4Address | IPv6Address) -> bool:
        behind = _BITS[self.address.version] - self.prefix_length
        same_family = address.version == self.address.version
        return same_family and int(address) >> behind == int(self.address) >> behind

    def cel_size(self) -> int:
        """Bytes that the prefix touches."""
        return -(-self.prefix_length // 8)

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}"


_PREFIX_LENGTH: Final = re.compile("0|[1-9][0-9]*")
_NETWORK_ERROR: Final = "network address parse error during conversion from string: "


def parse_address(text: str) -> tuple[IPv4Address | IPv6Address, str | None]:
    """An address and its zone, if it has one. Raises ValueError."""
    plain, percent, zone = text.partition("%")
    if percent and not zone:
        raise ValueError(f"ParseAddr({quoted(text)}): zone must be a non-empty string")
    try:
        return (IPv6Address(plain), zone) if percent else (ip_address(plain), None)
    except ValueError:
        raise ValueError(f"ParseAddr({quoted(text)}): unable to parse IP") from None


def _refuse_ipv4_in_ipv6(address: IPv4Address | IPv6Address, text: str, before: str = "") -> None:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise EvaluationError(f"{before}IPv4-mapped IPv6 address {quoted(text)} is not allowed")


def _network_error(text: str, reason: str) -> EvaluationError:
    return EvaluationError(f"{_NETWORK_ERROR}netip.ParsePrefix({quoted(text)}): {reason}")
