from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeBatch(_message.Message):
    __slots__ = ("n", "address", "epoch_seen", "opened", "words", "heard_session", "heard_n", "leased", "loads", "closed")
    N_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    HEARD_SESSION_FIELD_NUMBER: _ClassVar[int]
    HEARD_N_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    n: int
    address: str
    epoch_seen: int
    opened: _containers.RepeatedCompositeFieldContainer[OpenedSession]
    words: _containers.RepeatedCompositeFieldContainer[SessionWord]
    heard_session: _containers.RepeatedScalarFieldContainer[int]
    heard_n: _containers.RepeatedScalarFieldContainer[int]
    leased: _containers.RepeatedScalarFieldContainer[int]
    loads: _containers.RepeatedCompositeFieldContainer[SessionLoad]
    closed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, n: _Optional[int] = ..., address: _Optional[str] = ..., epoch_seen: _Optional[int] = ..., opened: _Optional[_Iterable[_Union[OpenedSession, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[SessionWord, _Mapping]]] = ..., heard_session: _Optional[_Iterable[int]] = ..., heard_n: _Optional[_Iterable[int]] = ..., leased: _Optional[_Iterable[int]] = ..., loads: _Optional[_Iterable[_Union[SessionLoad, _Mapping]]] = ..., closed: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenedSession(_message.Message):
    __slots__ = ("session", "certificate", "hello", "origin")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    session: int
    certificate: bytes
    hello: bytes
    origin: str
    def __init__(self, session: _Optional[int] = ..., certificate: _Optional[bytes] = ..., hello: _Optional[bytes] = ..., origin: _Optional[str] = ...) -> None: ...

class SessionWord(_message.Message):
    __slots__ = ("session", "word")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    session: int
    word: bytes
    def __init__(self, session: _Optional[int] = ..., word: _Optional[bytes] = ...) -> None: ...

class SessionLoad(_message.Message):
    __slots__ = ("session", "load")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    session: int
    load: bytes
    def __init__(self, session: _Optional[int] = ..., load: _Optional[bytes] = ...) -> None: ...

class LeaderBatch(_message.Message):
    __slots__ = ("epoch", "echo", "words", "ended", "addresses", "ca")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    echo: int
    words: _containers.RepeatedCompositeFieldContainer[SessionWord]
    ended: _containers.RepeatedCompositeFieldContainer[EndedSession]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    ca: bytes
    def __init__(self, epoch: _Optional[int] = ..., echo: _Optional[int] = ..., words: _Optional[_Iterable[_Union[SessionWord, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedSession, _Mapping]]] = ..., addresses: _Optional[_Iterable[str]] = ..., ca: _Optional[bytes] = ...) -> None: ...

class EndedSession(_message.Message):
    __slots__ = ("session", "code", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    code: int
    reason: str
    def __init__(self, session: _Optional[int] = ..., code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RenewWatcherRequest(_message.Message):
    __slots__ = ("csr", "follows")
    CSR_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    csr: bytes
    follows: bool
    def __init__(self, csr: _Optional[bytes] = ..., follows: bool = ...) -> None: ...

class RenewWatcherReply(_message.Message):
    __slots__ = ("certificate", "ca")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    ca: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., ca: _Optional[bytes] = ...) -> None: ...
