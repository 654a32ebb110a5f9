"""Messages of nodes that are embedded in watcher.proto: bytes -> message, or BadField."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from rota.model.errors import BadField
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb

M = TypeVar("M", bound=Message)


def from_node(message: bytes) -> pb.FromNode:
    """A message of a node; its bounds are checked where it is handled."""
    return _parsed(pb.FromNode(), message, "word")


def load_of(load: bytes) -> pb.Load:
    found = _parsed(pb.Load(), load, "load")
    bounds.check(found)
    return found


def _parsed(message: M, content: bytes, field: str) -> M:
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise BadField(field, "cannot be decoded", "send a message of agent.proto") from None
    return message
