"""Loopback addresses."""

import pytest

from rota.model.names import is_loopback


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.1", "127.8.9.10"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "10.0.0.5",
        "localhost.example.org",
        "127.example.org",
        "127.0.0.1.example.org",
        "::11",
        "1.127.0.0",
    ],
)
def test_addresses_that_only_look_like_loopback_are_not(host: str) -> None:
    assert not is_loopback(host)
