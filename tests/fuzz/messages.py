"""A protobuf message type -> odd messages of it, field by field from its descriptor."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tests.fuzz.odd import NUMBERS, TEXTS

M = TypeVar("M", bound=Message)

_DEPTH = 4
_LENGTHS = (0, 1, 1, 1, 2, 2, 3, 200, 5000)  # of lists and maps of numbers and texts
_FEW = (0, 1, 1, 2)  # of lists of messages, which contain lists themselves
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_WHOLE = [number for number in NUMBERS if isinstance(number, int)]
_INTEGERS = {kind: [n for n in _WHOLE if low <= n <= high] for kind, (low, high) in _RANGES.items()}
_UTF8 = [text for text in TEXTS if not any("\ud800" <= sign <= "\udfff" for sign in text)]


def odd_message(rng: Random, kind: type[M], texts: Sequence[str] = ()) -> M:
    """Some of its fields set, all to odd values; `texts` are more texts to choose from, such as ids."""
    message = kind()
    fields = _fields(message)
    for field in rng.sample(fields, rng.randint(0, len(fields))):
        _set(rng, message, field, texts, _DEPTH)
    return message


def bend(rng: Random, message: M, texts: Sequence[str] = ()) -> M:
    """A copy with one field, here or in a message within it, made odd."""
    copy = type(message)()
    copy.CopyFrom(message)
    inner: Any = copy
    while True:
        within = _messages(inner)
        if not within or rng.random() < 0.3:
            break
        inner = rng.choice(within)
    _set(rng, inner, rng.choice(_fields(inner)), texts, _DEPTH)
    return copy


def mangled(rng: Random, data: bytes) -> bytes:
    """The bytes of a message: mostly unchanged, else truncated, duplicated, altered or extended."""
    match rng.randrange(12):
        case 0:
            return data[: rng.randint(0, len(data))]
        case 1:
            return data + data  # each field twice, of a oneof too
        case 2 if data:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case 3:
            return data + rng.randbytes(rng.randrange(1, 40))
        case _:
            return data


def is_garbled(kind: type[Message], data: bytes) -> bool:
    """Whether no such message can be read from these bytes, so that gRPC itself refuses them."""
    try:
        kind.FromString(data)
    except DecodeError:
        return True
    return False


def _set(rng: Random, message: Message, field: FieldDescriptor, texts: Sequence[str], depth: int) -> None:
    if field.message_type is not None and depth == 0:
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _set_map(rng, message, field, texts, depth)
    elif field.is_repeated:
        values = getattr(message, field.name)
        # Parallel columns of unequal length are refused immediately, so the length mostly stays.
        keeps = len(values) > 0 and rng.random() < 0.8
        length = len(values) if keeps else rng.choice(_LENGTHS if field.message_type is None else _FEW)
        del values[:]
        for _ in range(length):
            if field.message_type is None:
                values.append(_scalar(rng, field, texts))
            else:
                _fill(rng, values.add(), texts, depth - 1)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _fill(rng, inner, texts, depth - 1)
    else:
        setattr(message, field.name, _scalar(rng, field, texts))


def _set_map(rng: Random, message: Message, field: FieldDescriptor, texts: Sequence[str], depth: int) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    entries = getattr(message, field.name)
    for _ in range(rng.choice(_LENGTHS if value.message_type is None else _FEW)):
        name = _scalar(rng, key, texts)
        if value.message_type is None:
            entries[name] = _scalar(rng, value, texts)
        else:
            _fill(rng, entries[name], texts, depth - 1)


def _fill(rng: Random, message: Message, texts: Sequence[str], depth: int) -> None:
    for field in _fields(message):
        if rng.random() < 0.6:
            _set(rng, message, field, texts, depth)


def _scalar(rng: Random, field: FieldDescriptor, texts: Sequence[str]) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 100, 70_000)))
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice(texts if texts and rng.random() < 0.5 else _UTF8)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice(_INTEGERS[FieldDescriptor.CPPTYPE_INT32])
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice([float(n) for n in NUMBERS if not isinstance(n, int)] + [math.pi])
        case kind:
            low, high = _RANGES[kind]
            ends = (low, high, high - 1, high // 2 + 1)
            return rng.choice(ends if rng.random() < 0.4 else _INTEGERS[kind])


def _fields(message: Message) -> list[FieldDescriptor]:
    found: Any = message.DESCRIPTOR.fields
    return list(found)


def _messages(message: Message) -> list[Message]:
    """Those that are set within it, in lists too."""
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found += value if field.is_repeated else [value]
    return found
