"""Messages of nodes within those of watcher.proto: bytes -> message, or the field that is wrong."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from rota.model.errors import BadField
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb

Word = TypeVar("Word", bound=Message)


def from_node(word: bytes) -> pb.FromNode:
    """What a node said; its bounds are checked where it is heard."""
    return _parsed(pb.FromNode(), word, "word")


def load_of(load: bytes) -> pb.Load:
    found = _parsed(pb.Load(), load, "load")
    bounds.check(found)
    return found


def _parsed(message: Word, content: bytes, field: str) -> Word:
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise BadField(field, "cannot be decoded", "send a message of agent.proto") from None
    return message
