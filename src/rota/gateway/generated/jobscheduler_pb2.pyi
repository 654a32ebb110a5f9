from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("success", "workerID")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    WORKERID_FIELD_NUMBER: _ClassVar[int]
    success: bool
    workerID: str
    def __init__(self, success: bool = ..., workerID: _Optional[str] = ...) -> None: ...

class DeregisterWorkerRequest(_message.Message):
    __slots__ = ("workerID",)
    WORKERID_FIELD_NUMBER: _ClassVar[int]
    workerID: str
    def __init__(self, workerID: _Optional[str] = ...) -> None: ...

class DeregisterWorkerResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: bool = ...) -> None: ...

class StartJobRequest(_message.Message):
    __slots__ = ("command", "path")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    command: str
    path: str
    def __init__(self, command: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class StartJobResponse(_message.Message):
    __slots__ = ("jobID",)
    JOBID_FIELD_NUMBER: _ClassVar[int]
    jobID: str
    def __init__(self, jobID: _Optional[str] = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("jobID",)
    JOBID_FIELD_NUMBER: _ClassVar[int]
    jobID: str
    def __init__(self, jobID: _Optional[str] = ...) -> None: ...

class StopJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryJobRequest(_message.Message):
    __slots__ = ("jobID",)
    JOBID_FIELD_NUMBER: _ClassVar[int]
    jobID: str
    def __init__(self, jobID: _Optional[str] = ...) -> None: ...

class QueryJobResponse(_message.Message):
    __slots__ = ("done", "error", "errorText")
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERRORTEXT_FIELD_NUMBER: _ClassVar[int]
    done: bool
    error: bool
    errorText: str
    def __init__(self, done: bool = ..., error: bool = ..., errorText: _Optional[str] = ...) -> None: ...

class StreamJobRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class StreamJobResponse(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: bytes
    def __init__(self, output: _Optional[bytes] = ...) -> None: ...
