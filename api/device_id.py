"""What identifies a device in the cluster."""

from __future__ import annotations

from typing import NamedTuple


class PoolId(NamedTuple):
    """A pool of a driver. Two drivers may use one pool name."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """A device of any driver, ours included (resource.k8s.io/v1: driver, pool and device together are its name)."""

    driver: str
    pool: str
    device: str

    @property
    def pool_id(self) -> PoolId:
        """The pool of the device."""
        return PoolId(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"
