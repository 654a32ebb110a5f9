"""A real cluster with a hostile tenant, and canary jobs of another that must always finish. [I/O]"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rota.testing.cluster import HttpReply, LocalCluster
from rota.testing.processes import until

HOSTILE, CANARY = "hostile", "canary"
# With this quota the hostile tenant cannot fill the cluster, so that a waiting canary is always a failure.
QUOTA = {"cpu": 3, "memory": "512m", "tasks": 64}
CANARY_SECONDS = 60.0
CLEAR_SECONDS = 180.0
NODES = 2
SETTINGS = {"ROTA_CONTAINER": "none", "ROTA_WORKER_GATEWAY_ENABLED": "true"}  # no image is ever pulled


class ClusterBroken(Exception):
    """The cluster did not survive: which process ended, or which canary did not finish."""


class Outcomes:
    """Counts of requests by kind and outcome, and the problems found."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.problems: dict[str, str] = {}  # problem -> how it was found first

    def record(self, kind: str, outcome: str) -> None:
        self.counts.setdefault(kind, Counter())[outcome] += 1

    def add_problem(self, wrong: str, found: str) -> None:
        self.problems.setdefault(wrong, found)

    def __str__(self) -> str:
        return "\n".join([*(f"  {wrong}: {found}" for wrong, found in self.problems.items()), self.table()])

    def table(self) -> str:
        width = max((len(kind) for kind in self.counts), default=4)
        rows = [
            f"  {kind:<{width}} {sum(count.values()):>7,}   "
            + ", ".join(f"{outcome} {number:,}" for outcome, number in sorted(count.items()))
            for kind, count in sorted(self.counts.items())
        ]
        return "\n".join([f"  {'what':<{width}} {'tried':>7}   outcomes", *rows])


class Arena:
    """A cluster of two nodes with a hostile and a canary tenant; opened by `open_arena`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.hostile = self._tenant(HOSTILE)
        self._canary = self._tenant(CANARY)
        answer = cluster.call("PUT", f"/v1/namespaces/{HOSTILE}", {"quota": QUOTA})
        assert answer.status == 200, answer
        self._pids = sorted(cluster.processes())

    def call(self, method: str, path: str, body: object = None) -> HttpReply:
        """Send a request as the hostile tenant."""
        try:
            return self.cluster.call(method, path, body, authorization=f"Bearer {self.hostile}")
        except OSError as error:
            raise ClusterBroken(f"{method} {path} {body!r:.1000}: {error!r}; {self._log_tails()}") from error

    def check(self) -> None:
        """Every process lives, every node is ready, and a canary job finishes."""
        self._check_processes()
        body = {
            "command": ["true"],
            "namespace": CANARY,
            "where": ["number exists"],
        }  # only on an honest node
        try:
            job = self._canary_call("POST", "/v1/jobs", body).body["id"]
            until(lambda: self._has_succeeded(job), f"canary job {job} succeeds", CANARY_SECONDS)
        except (OSError, TimeoutError, KeyError) as error:
            self._check_processes()
            raise ClusterBroken(f"{error!r}; {self._why(locals().get('job'))}") from error
        self._check_processes()

    def restart_server(self) -> None:
        """Kill and restart the server, and wait for the honest nodes."""
        self.cluster.kill_server()
        try:
            self.cluster.start_server()
            until(self._honest_nodes_are_ready, "honest nodes are ready", CANARY_SECONDS)
        except (OSError, TimeoutError) as error:  # ChildProcessError if the server ends immediately
            raise ClusterBroken(f"after a restart: {error}; {self._log_tails()}") from error
        self._pids = sorted(self.cluster.processes())

    def clear(self) -> None:
        """Kill and delete everything of the hostile tenant; all of it must end."""
        for cron in self.call("GET", "/v1/crons").body["crons"]:
            self.call("DELETE", f"/v1/crons/{cron['name']}?namespace={HOSTILE}")

        def is_gone() -> bool:
            for job in self._jobs("active"):
                self.call("POST", f"/v1/jobs/{job}/kill", {})
            for job in (ended := self._jobs("ended")):
                self.call("DELETE", f"/v1/jobs/{job}")
            return not ended and not self._jobs("active")

        try:
            until(is_gone, "all jobs of the hostile tenant are gone", CLEAR_SECONDS)
        except TimeoutError as error:
            left = [self.call("GET", f"/v1/jobs/{job}").body for job in self._jobs("active")[:3]]
            raise ClusterBroken(f"{error}: {left!r:.1500}") from error

    def _honest_nodes_are_ready(self) -> bool:
        nodes = self.cluster.call("GET", "/v1/nodes?label=number").body["nodes"]
        return [node["state"] for node in nodes] == ["ready"] * NODES

    def _check_processes(self) -> None:
        """Check that no process has ended; a child that a keeper has just forked looks like a keeper, too."""
        if gone := set(self._pids) - set(self.cluster.processes()):
            raise ClusterBroken(f"{sorted(gone)} of server, agents and keepers ended; {self._log_tails()}")

    def _log_tails(self) -> str:
        logs = sorted(self.cluster.directory.glob("*.log"))
        return "; ".join(f"{log.name}: {log.read_text(errors='replace')[-300:]!r}" for log in logs)

    def _tenant(self, name: str) -> str:
        body = {"name": name, "role": "submitter", "namespaces": [name]}
        return str(self.cluster.call("POST", "/v1/tokens", body).body["token"])

    def _canary_call(self, method: str, path: str, body: object = None) -> HttpReply:
        return self.cluster.call(method, path, body, authorization=f"Bearer {self._canary}")

    def _has_succeeded(self, job: str) -> bool:
        state = self._canary_call("GET", f"/v1/jobs/{job}").body["state"]
        if state in ("failed", "canceled", "timed_out", "rejected", "lost"):
            raise ClusterBroken(f"canary job {job} is {state}")
        return bool(state == "succeeded")

    def _why(self, job: str | None) -> object:
        with contextlib.suppress(OSError):
            return job and self._canary_call("GET", f"/v1/jobs/{job}/why").body
        return "the server does not answer"

    def _jobs(self, state: str) -> list[str]:
        return [job["id"] for job in self.call("GET", f"/v1/jobs?state={state}&limit=1000").body["jobs"]]


@contextlib.contextmanager
def open_arena(directory: Path) -> Iterator[Arena]:
    with LocalCluster(directory, nodes=NODES, settings=SETTINGS) as cluster:
        yield Arena(cluster)
