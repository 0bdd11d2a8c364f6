"""Waiting times between attempts to connect, and which links should never go through a proxy."""

from __future__ import annotations

import ipaddress
import random
from urllib.parse import urlsplit


class Backoff:
    """Doubling waits with jitter, from `first_s` up to `max_s`; `reset` starts over after a success."""

    def __init__(self, first_s: float = 0.05, max_s: float = 2.0) -> None:
        self._first_s, self._max_s, self._attempts = first_s, max_s, 0

    def next_s(self) -> float:
        wait = min(self._max_s, self._first_s * 2 ** min(self._attempts, 16))
        self._attempts += 1
        return wait * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._attempts = 0


def is_local(url: str) -> bool:
    """Whether the address is this machine or in a private network, where a proxy from the environment is never
    meant.
    """
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".local") or ("." not in host and ":" not in host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_link_local
