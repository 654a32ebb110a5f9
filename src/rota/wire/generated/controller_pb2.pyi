from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScheduleRequest(_message.Message):
    __slots__ = ("spec_json", "idempotency_key", "logs")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    idempotency_key: str
    logs: bool
    def __init__(self, spec_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., logs: bool = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("job", "stage", "log")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    job: str
    stage: JobStage
    log: LogPart
    def __init__(self, job: _Optional[str] = ..., stage: _Optional[_Union[JobStage, _Mapping]] = ..., log: _Optional[_Union[LogPart, _Mapping]] = ...) -> None: ...

class JobStage(_message.Message):
    __slots__ = ("state", "reason", "counts", "exit_code", "signal", "final")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    counts: _containers.ScalarMap[str, int]
    exit_code: int
    signal: int
    final: bool
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., final: bool = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("index", "attempt", "stream", "offset", "data", "missing", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    missing: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., missing: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("job", "reason", "indices", "kill", "signal")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    reason: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    kill: bool
    signal: str
    def __init__(self, job: _Optional[str] = ..., reason: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., kill: bool = ..., signal: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("job", "fields_json", "if_version", "replace", "max_parallel")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    job: str
    fields_json: str
    if_version: int
    replace: bool
    max_parallel: int
    def __init__(self, job: _Optional[str] = ..., fields_json: _Optional[str] = ..., if_version: _Optional[int] = ..., replace: bool = ..., max_parallel: _Optional[int] = ...) -> None: ...

class UpdateReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("subscriber", "after", "job")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    after: str
    job: str
    def __init__(self, subscriber: _Optional[str] = ..., after: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at_ms", "kind", "job", "node", "first_index", "last_index", "attempt", "exit_code", "state", "why", "step")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    sequence: str
    at_ms: int
    kind: str
    job: str
    node: str
    first_index: _containers.RepeatedScalarFieldContainer[int]
    last_index: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    exit_code: int
    state: str
    why: str
    step: int
    def __init__(self, sequence: _Optional[str] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., first_index: _Optional[_Iterable[int]] = ..., last_index: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., exit_code: _Optional[int] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("subscriber", "sequence")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    sequence: str
    def __init__(self, subscriber: _Optional[str] = ..., sequence: _Optional[str] = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
