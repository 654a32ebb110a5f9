"""A worker as a third party would write it: from jobscheduler.proto only, without any code of Rota.

python foreign_worker.py SCHEDULER [name=value ...]: manners are `deaf` (answers no call), `slow` (so many
seconds before a start is answered), `silent` (does not register), `mute` (has no StreamJob), `argument` (runs
the command with the path as its argument, not in it); `crt`, `key` and `ca` are files for TLS.
It prints its port, then its id, then every call. A line on stdin: register, deregister [ID], quit.
"""

import itertools
import shlex
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import jobscheduler_pb2 as pb  # type: ignore[import-not-found]  # made by the test
import jobscheduler_pb2_grpc as pb_grpc  # type: ignore[import-not-found]


def tell(*words: object) -> None:
    print(*words, flush=True)


class Worker(pb_grpc.WorkerServicer):  # type: ignore[misc]
    def __init__(self, manners: dict[str, str]) -> None:
        self.manners = manners
        self.jobs: dict[str, subprocess.Popen[bytes]] = {}
        self.written: dict[str, bytearray] = {}
        self.gathering: dict[str, threading.Thread] = {}

    def _answer(self, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        while "deaf" in self.manners:
            time.sleep(0.1)

    def StartJob(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802 - gRPC's name
        tell("start", request.command, "in", request.path or "-")
        self._answer(float(self.manners.get("slow", 0)))
        words, place = shlex.split(request.command), request.path or None
        if "argument" in self.manners:
            words, place = [request.command, request.path], None
        try:
            job = subprocess.Popen(words, cwd=place, stdout=subprocess.PIPE)
        except OSError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot run: {error.strerror}")
            raise
        name = f"job-{len(self.jobs) + 1}"
        self.jobs[name], self.written[name] = job, bytearray()
        self.gathering[name] = threading.Thread(target=self._gather, args=(name,), daemon=True)
        self.gathering[name].start()
        return pb.StartJobResponse(jobID=name)

    def StopJob(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        tell("stop", request.jobID)
        self._answer()
        if request.jobID not in self.jobs:
            context.abort(grpc.StatusCode.UNKNOWN, "no such job")
        self.jobs[request.jobID].kill()
        return pb.StopJobResponse()

    def QueryJob(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        self._answer()
        if request.jobID not in self.jobs:
            context.abort(grpc.StatusCode.UNKNOWN, "no such job")
        code = self.jobs[request.jobID].poll()
        text = "signal: killed" if code == -9 else f"exit status {code}" if code else ""
        return pb.QueryJobResponse(done=code is not None, error=bool(code), errorText=text)

    def StreamJob(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        self._answer()
        at = 0
        while context.is_active():
            ended = not self.gathering[request.path].is_alive()
            piece = bytes(self.written[request.path][at : at + 65536])
            at += len(piece)
            if piece:
                yield pb.StreamJobResponse(output=piece)
            elif ended:
                return
            else:
                time.sleep(0.02)

    def _gather(self, name: str) -> None:
        for line in self.jobs[name].stdout or ():
            self.written[name] += line


class Mute(Worker):
    StreamJob = pb_grpc.WorkerServicer.StreamJob  # which says UNIMPLEMENTED


def main() -> None:
    scheduler, *options = sys.argv[1:]
    manners = dict(word.partition("=")[::2] for word in options)
    server = grpc.server(futures.ThreadPoolExecutor(32))
    worker = Mute(manners) if "mute" in manners else Worker(manners)
    pb_grpc.add_WorkerServicer_to_server(worker, server)
    channel = grpc.insecure_channel(scheduler)
    if "crt" in manners:
        key, crt, ca = (Path(manners[name]).read_bytes() for name in ("key", "crt", "ca"))
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, crt)]))
        channel = grpc.secure_channel(scheduler, grpc.ssl_channel_credentials(ca))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tell("port", port)
    host = "localhost" if "crt" in manners else "127.0.0.1"
    stub, own = pb_grpc.SchedulerStub(channel), ""
    for line in sys.stdin if "silent" in manners else itertools.chain(["register"], sys.stdin):
        verb, _, name = line.strip().partition(" ")
        if verb == "register":
            done = stub.RegisterWorker(pb.RegisterWorkerRequest(address=f"{host}:{port}"), timeout=30)
            own = done.workerID
            tell("registered", done.success, own)
        elif verb == "deregister":
            asked = pb.DeregisterWorkerRequest(workerID=name or own)
            tell("deregistered", stub.DeregisterWorker(asked, timeout=30).success)
        else:
            break
    for job in worker.jobs.values():
        job.kill()


main()
