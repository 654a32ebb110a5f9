from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScheduleRequest(_message.Message):
    __slots__ = ("spec_json", "idempotency_key", "logs", "heard")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    idempotency_key: str
    logs: bool
    heard: Heard
    def __init__(self, spec_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., logs: bool = ..., heard: _Optional[_Union[Heard, _Mapping]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("job", "logs", "heard")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    job: str
    logs: bool
    heard: Heard
    def __init__(self, job: _Optional[str] = ..., logs: bool = ..., heard: _Optional[_Union[Heard, _Mapping]] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("sequence", "logs")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    sequence: str
    logs: _containers.RepeatedCompositeFieldContainer[LogPosition]
    def __init__(self, sequence: _Optional[str] = ..., logs: _Optional[_Iterable[_Union[LogPosition, _Mapping]]] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("index", "stream", "attempt", "offset")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    index: int
    stream: str
    attempt: int
    offset: int
    def __init__(self, index: _Optional[int] = ..., stream: _Optional[str] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("job", "stage", "log", "task")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    job: str
    stage: JobStage
    log: LogPart
    task: Event
    def __init__(self, job: _Optional[str] = ..., stage: _Optional[_Union[JobStage, _Mapping]] = ..., log: _Optional[_Union[LogPart, _Mapping]] = ..., task: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class JobStage(_message.Message):
    __slots__ = ("state", "reason", "counts", "exit_code", "signal", "final", "sequence")
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
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    counts: _containers.ScalarMap[str, int]
    exit_code: int
    signal: int
    final: bool
    sequence: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., final: bool = ..., sequence: _Optional[str] = ...) -> None: ...

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

class BulkRequest(_message.Message):
    __slots__ = ("id", "schedule", "stop")
    ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    id: str
    schedule: BulkJob
    stop: StopRequest
    def __init__(self, id: _Optional[str] = ..., schedule: _Optional[_Union[BulkJob, _Mapping]] = ..., stop: _Optional[_Union[StopRequest, _Mapping]] = ...) -> None: ...

class BulkJob(_message.Message):
    __slots__ = ("spec_json", "idempotency_key", "follow")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    idempotency_key: str
    follow: bool
    def __init__(self, spec_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., follow: bool = ...) -> None: ...

class BulkReply(_message.Message):
    __slots__ = ("id", "accepted", "refused", "stage", "stopped")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    id: str
    accepted: BulkAccepted
    refused: Refusal
    stage: Stage
    stopped: StopReply
    def __init__(self, id: _Optional[str] = ..., accepted: _Optional[_Union[BulkAccepted, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., stopped: _Optional[_Union[StopReply, _Mapping]] = ...) -> None: ...

class BulkAccepted(_message.Message):
    __slots__ = ("job", "new")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    job: str
    new: bool
    def __init__(self, job: _Optional[str] = ..., new: bool = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "detail", "field", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    field: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., field: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

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

class PauseRequest(_message.Message):
    __slots__ = ("job", "stop", "idempotency_key")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job: str
    stop: bool
    idempotency_key: str
    def __init__(self, job: _Optional[str] = ..., stop: bool = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("job", "idempotency_key")
    JOB_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job: str
    idempotency_key: str
    def __init__(self, job: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("job", "indices", "idempotency_key")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    idempotency_key: str
    def __init__(self, job: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("job", "indices", "to", "idempotency_key")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    to: str
    idempotency_key: str
    def __init__(self, job: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ..., to: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class OrderReply(_message.Message):
    __slots__ = ("job", "state")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "deadline_ms", "force")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    node: str
    deadline_ms: int
    force: bool
    def __init__(self, node: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., force: bool = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("node", "eligibility", "running")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    node: str
    eligibility: str
    running: int
    def __init__(self, node: _Optional[str] = ..., eligibility: _Optional[str] = ..., running: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("spec_json",)
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    spec_json: str
    def __init__(self, spec_json: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("outcome", "sentence", "count", "starts", "places", "plan_json")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    sentence: str
    count: int
    starts: int
    places: _containers.RepeatedCompositeFieldContainer[PlannedPlace]
    plan_json: str
    def __init__(self, outcome: _Optional[str] = ..., sentence: _Optional[str] = ..., count: _Optional[int] = ..., starts: _Optional[int] = ..., places: _Optional[_Iterable[_Union[PlannedPlace, _Mapping]]] = ..., plan_json: _Optional[str] = ...) -> None: ...

class PlannedPlace(_message.Message):
    __slots__ = ("node", "tasks", "new")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    node: str
    tasks: int
    new: bool
    def __init__(self, node: _Optional[str] = ..., tasks: _Optional[int] = ..., new: bool = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("subscriber", "after", "job", "statistics_interval_ms")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    after: str
    job: str
    statistics_interval_ms: int
    def __init__(self, subscriber: _Optional[str] = ..., after: _Optional[str] = ..., job: _Optional[str] = ..., statistics_interval_ms: _Optional[int] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events", "summary")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    summary: Summary
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("at_ms", "queue", "nodes", "last")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    queue: QueueState
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatistics]
    last: bool
    def __init__(self, at_ms: _Optional[int] = ..., queue: _Optional[_Union[QueueState, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatistics, _Mapping]]] = ..., last: bool = ...) -> None: ...

class NodeStatistics(_message.Message):
    __slots__ = ("node", "age_ms", "cores", "cpu_milli", "load_milli", "memory_total", "memory_free", "swap_total", "swap_free", "disk_free", "disks", "gpus", "running", "queued")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    LOAD_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_FIELD_NUMBER: _ClassVar[int]
    SWAP_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_FREE_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    node: str
    age_ms: int
    cores: int
    cpu_milli: int
    load_milli: int
    memory_total: int
    memory_free: int
    swap_total: int
    swap_free: int
    disk_free: int
    disks: _containers.RepeatedCompositeFieldContainer[DiskStatistics]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuStatistics]
    running: int
    queued: int
    def __init__(self, node: _Optional[str] = ..., age_ms: _Optional[int] = ..., cores: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., load_milli: _Optional[int] = ..., memory_total: _Optional[int] = ..., memory_free: _Optional[int] = ..., swap_total: _Optional[int] = ..., swap_free: _Optional[int] = ..., disk_free: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[DiskStatistics, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuStatistics, _Mapping]]] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ...) -> None: ...

class DiskStatistics(_message.Message):
    __slots__ = ("path", "total", "free")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    path: str
    total: int
    free: int
    def __init__(self, path: _Optional[str] = ..., total: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class GpuStatistics(_message.Message):
    __slots__ = ("name", "busy", "memory_total", "memory_used")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy: int
    memory_total: int
    memory_used: int
    def __init__(self, name: _Optional[str] = ..., busy: _Optional[int] = ..., memory_total: _Optional[int] = ..., memory_used: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at_ms", "kind", "job", "node", "first_index", "last_index", "attempt", "exit_code", "state", "why", "step", "result_json", "namespace", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
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
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
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
    result_json: str
    namespace: str
    counts: _containers.ScalarMap[str, int]
    def __init__(self, sequence: _Optional[str] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., first_index: _Optional[_Iterable[int]] = ..., last_index: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., exit_code: _Optional[int] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., step: _Optional[int] = ..., result_json: _Optional[str] = ..., namespace: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

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

class ResolveRequest(_message.Message):
    __slots__ = ("subscriber", "job", "first_index", "last_index", "attempt", "word")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    job: str
    first_index: _containers.RepeatedScalarFieldContainer[int]
    last_index: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    word: str
    def __init__(self, subscriber: _Optional[str] = ..., job: _Optional[str] = ..., first_index: _Optional[_Iterable[int]] = ..., last_index: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., word: _Optional[str] = ...) -> None: ...

class ResolveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatePage(_message.Message):
    __slots__ = ("sequence", "queue", "nodes", "jobs", "unresolved")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    UNRESOLVED_FIELD_NUMBER: _ClassVar[int]
    sequence: str
    queue: QueueState
    nodes: _containers.RepeatedCompositeFieldContainer[NodeLine]
    jobs: _containers.RepeatedCompositeFieldContainer[JobLine]
    unresolved: _containers.RepeatedCompositeFieldContainer[UnresolvedTask]
    def __init__(self, sequence: _Optional[str] = ..., queue: _Optional[_Union[QueueState, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeLine, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobLine, _Mapping]]] = ..., unresolved: _Optional[_Iterable[_Union[UnresolvedTask, _Mapping]]] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("jobs", "tasks")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    tasks: int
    def __init__(self, jobs: _Optional[int] = ..., tasks: _Optional[int] = ...) -> None: ...

class NodeLine(_message.Message):
    __slots__ = ("id", "name", "state", "eligibility", "cluster", "labels", "capacity", "reserved", "running", "queued", "report_interval_ms", "statistics")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ReservedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    state: str
    eligibility: str
    cluster: str
    labels: _containers.ScalarMap[str, str]
    capacity: _containers.ScalarMap[str, float]
    reserved: _containers.ScalarMap[str, float]
    running: int
    queued: int
    report_interval_ms: int
    statistics: NodeStatistics
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., eligibility: _Optional[str] = ..., cluster: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., capacity: _Optional[_Mapping[str, float]] = ..., reserved: _Optional[_Mapping[str, float]] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., report_interval_ms: _Optional[int] = ..., statistics: _Optional[_Union[NodeStatistics, _Mapping]] = ...) -> None: ...

class JobLine(_message.Message):
    __slots__ = ("id", "name", "namespace", "state", "counts", "user")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    namespace: str
    state: str
    counts: _containers.ScalarMap[str, int]
    user: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., state: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., user: _Optional[str] = ...) -> None: ...

class UnresolvedTask(_message.Message):
    __slots__ = ("job", "index", "attempt", "owner")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    attempt: int
    owner: str
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class SetPaceRequest(_message.Message):
    __slots__ = ("least_ms", "most_ms")
    LEAST_MS_FIELD_NUMBER: _ClassVar[int]
    MOST_MS_FIELD_NUMBER: _ClassVar[int]
    least_ms: int
    most_ms: int
    def __init__(self, least_ms: _Optional[int] = ..., most_ms: _Optional[int] = ...) -> None: ...

class PaceReply(_message.Message):
    __slots__ = ("least_ms", "most_ms")
    LEAST_MS_FIELD_NUMBER: _ClassVar[int]
    MOST_MS_FIELD_NUMBER: _ClassVar[int]
    least_ms: int
    most_ms: int
    def __init__(self, least_ms: _Optional[int] = ..., most_ms: _Optional[int] = ...) -> None: ...
