"""A canned server and a client of it."""

from collections.abc import Iterator

import pytest

from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from tests.client.canned_server import TOKEN, CannedServer


@pytest.fixture
def server() -> Iterator[CannedServer]:
    canned = CannedServer()
    yield canned
    canned.stop()


@pytest.fixture
def cluster(server: CannedServer) -> Iterator[Cluster]:
    with Cluster(Endpoint(server.addr, TOKEN), patience_seconds=30.0) as connected:
        yield connected
