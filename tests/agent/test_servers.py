"""The rotation of servers."""

from pathlib import Path

from rota.agent import servers
from rota.agent.servers import ServerList


def test_every_server_is_tried_before_a_backoff(tmp_path: Path) -> None:
    known = ServerList(tmp_path, ("a:1", "b:2", "c:3"))
    called, pauses = [], []
    for _ in range(6):
        called.append(known.current)
        pauses.append(known.rotate())

    assert called == ["a:1", "b:2", "c:3"] * 2
    assert pauses == [False, False, True] * 2


def test_a_single_server_is_called_again_after_a_backoff(tmp_path: Path) -> None:
    known = ServerList(tmp_path, ("a:1",))

    assert known.is_one
    assert known.rotate()
    assert known.current == "a:1"


def test_learned_servers_are_known_after_a_restart(tmp_path: Path) -> None:
    known = ServerList(tmp_path, ("a:1",))
    known.update(["b:2", "a:1", "c:3"])
    known.rotate()

    assert known.current == "b:2"
    assert servers.read(tmp_path / servers.FILE) == ("b:2", "a:1", "c:3")
