"""Expiry of certificates is shown, and warned of when it is near: in the status, the metrics and the log."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rota.apiserver.views import certificates
from rota.identity.certificates import Period
from rota.identity.expiry import Expiry
from rota.model.lifecycle import NodeState
from rota.model.node import NodeStatus
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Serving, serving

NOW = datetime.now(UTC).replace(microsecond=0)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def with_certificate(number: int, state: NodeState, end: datetime) -> NodeStatus:
    expires_at_ms = round(end.timestamp() * 1000)
    return msgspec.structs.replace(node_status(number, state), certificate_expires_at_ms=expires_at_ms)


def own(left: timedelta) -> Callable[[], list[Expiry]]:
    """A certificate of 30 days with that much time left."""
    end = NOW + left
    return lambda: [Expiry("server", Period(end - 30 * DAY, end), "see the log")]


@pytest.mark.parametrize(("left", "said"), [(7 * DAY, None), (5 * DAY, "expires in"), (-DAY, "expired on")])
async def test_a_server_certificate_is_shown_and_warned_of_in_its_last_fifth(
    tmp_path: Path, left: timedelta, said: str | None
) -> None:
    async with serving(tmp_path, MemoryStore, expiries=own(left)) as server:
        shown = (await server.call("GET", "/v1/server")).json
        figures = await scraped(server)

    assert [one["name"] for one in shown["certificates"]] == ["server"]
    assert shown["certificates"][0]["expires_at_ms"] == (NOW + left).timestamp() * 1000
    assert figures["rota_certificate_expires_timestamp_seconds"] == (NOW + left).timestamp()
    assert len(shown["certificate_warnings"]) == (0 if said is None else 1)
    assert (said or "") in "".join(shown["certificate_warnings"])


async def test_nodes_show_their_expiry_and_overdue_ones_are_named(tmp_path: Path) -> None:
    states = {
        1: (NodeState.READY, NOW + 20 * HOUR),
        2: (NodeState.READY, NOW + 4 * HOUR),  # of 24 h: it should have renewed
        3: (NodeState.LOST, NOW - 10 * DAY),  # it can renew when it returns
        4: (NodeState.LOST, NOW - 80 * DAY),  # of 90 days: not for long
        5: (NodeState.LOST, NOW - 100 * DAY),  # it has to join again
    }
    async with serving(tmp_path, MemoryStore, expiries=own(20 * DAY)) as server:
        for number, (state, end) in states.items():
            await server.put("apiserver", node(number, f"n{number}"))
            await server.put("watcher", with_certificate(number, state, end))
        nodes = (await server.call("GET", "/v1/nodes")).json["nodes"]
        warnings = (await server.call("GET", "/v1/server")).json["certificate_warnings"]
        figures = await scraped(server)

    assert [one["certificate_expires_at_ms"] for one in nodes] == [
        end.timestamp() * 1000 for _, end in states.values()
    ]
    late, lost = warnings
    assert late.startswith("the certificate of node n2 expires in")
    assert lost.startswith("node n4 is lost, and can renew its certificate until")
    assert figures["rota_node_certificates_late"] == 1
    first = (NOW + 4 * HOUR).timestamp()
    assert figures["rota_node_certificate_expires_first_timestamp_seconds"] == first


async def test_if_all_nodes_are_overdue_some_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, expiries=own(20 * DAY)) as server:
        for number in range(1, certificates.NODES_NAMED_MAX + 6):
            await server.put("apiserver", node(number, f"n{number}"))
            await server.put("watcher", with_certificate(number, NodeState.READY, NOW))
        warnings = (await server.call("GET", "/v1/server")).json["certificate_warnings"]

    assert len(warnings) == certificates.NODES_NAMED_MAX + 1
    assert warnings[-1] == "the certificates of 5 more nodes expire soon, too"


async def scraped(server: Serving) -> dict[str, float]:
    reply = await server.call("GET", "/metrics")
    families = text_string_to_metric_families(reply.body.decode())
    return {one.name: one.value for family in families for one in family.samples}
