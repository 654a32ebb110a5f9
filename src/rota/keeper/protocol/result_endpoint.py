"""Where a job's tasks report what came of them -> the token of each attempt, which no other task can read."""

import hashlib
import hmac
from dataclasses import dataclass

from rota.keeper import parsing
from rota.keeper.job_files import write_secret
from rota.keeper.resources.reservations import AttemptKey

OUT = "out"  # in the directory of a task: its outputs
REPORT = "report"  # the same, where the agent reports for it: the file that the task leaves


@dataclass(frozen=True, slots=True)
class KeeperResultEndpoint:
    url: str
    key: str
    node: str
    ca: str
    others: tuple[str, ...] = ()
    by_agent: bool = False  # the agent reports: tasks have no token, and may leave it a file

    @property
    def varying(self) -> tuple[str, ...]:
        """The variables that differ between attempts."""
        return tuple(result_environment(self, ("", 0, 0), ""))

    def result_urls(self, key: AttemptKey) -> list[str]:
        """One for each server; the first led when this was told."""
        job, index, attempt = key
        path = f"/v1/jobs/{job}/tasks/{index}/attempts/{attempt}/result"
        return [f"{url}{path}" for url in (self.url, *self.others)]


def parse_result_endpoint(raw: object) -> KeeperResultEndpoint | None:
    if raw is None:
        return None
    said = parsing.expect(raw, "spec.reports", dict, "an object")
    url, key, node, ca = (
        parsing.text(said.get(name, ""), f"spec.reports.{name}") for name in ("url", "key", "node", "ca")
    )
    others = parsing.expect(said.get("others", []), "spec.reports.others", list, "a list of addresses")
    by_agent = parsing.expect(said.get("by_agent", False), "spec.reports.by_agent", bool, "true or false")
    texts = tuple(parsing.text(one, "spec.reports.others") for one in others)
    return KeeperResultEndpoint(url, key, node, ca, texts, by_agent)


def attempt_token(reports: KeeperResultEndpoint, key: AttemptKey) -> str:
    """The control plane makes the same one: nothing is asked of it, and nothing remembered."""
    name = f"{key[0]}.{key[1]}.{key[2]}"
    made = hmac.new(reports.key.encode(), name.encode(), hashlib.sha256).hexdigest()
    return f"task_{name}.{reports.node}.{made}"


def token_name(key: AttemptKey) -> str:
    """The file of a token, in the directory of its task."""
    return f"{key[2]}.token"


def result_environment(reports: KeeperResultEndpoint, key: AttemptKey, directory: str) -> dict[str, str]:
    """What the attempt finds in its environment; `directory`: its task's."""
    if reports.by_agent:
        return {"ROTA_RESULT_FILE": f"{directory}/{REPORT}/{key[2]}.json"}
    urls = reports.result_urls(key)
    ca = {"ROTA_CA_FILE": f"{directory}/ca.pem"} if reports.ca else {}
    file = f"{directory}/{token_name(key)}"
    return {"ROTA_RESULT_URL": urls[0], "ROTA_RESULT_URLS": " ".join(urls), "ROTA_TOKEN_FILE": file, **ca}


def write_token_files(reports: KeeperResultEndpoint, key: AttemptKey, directory: str) -> None:
    """Once for an attempt, however often its processes are started."""
    if reports.by_agent:
        return
    write_secret(directory, token_name(key), f"{attempt_token(reports, key)}\n".encode(), beside=OUT)
    if reports.ca:
        write_secret(directory, "ca.pem", reports.ca.encode(), beside=OUT)
