"""The endpoint for results of a job's tasks, and the token of each attempt, which no other task can read."""

import hashlib
import hmac
from dataclasses import dataclass

from rota.keeper import parsing
from rota.keeper.job_files import write_secret
from rota.keeper.resources.reservations import AttemptKey

OUT = "out"  # in the directory of a task: its output files
REPORT = "report"  # in the directory of a task: the result file, if the agent reports it


@dataclass(frozen=True, slots=True)
class KeeperResultEndpoint:
    url: str
    key: str
    node: str
    ca: str
    others: tuple[str, ...] = ()
    by_agent: bool = False  # the agent reports: tasks have no token, and may leave a result file

    @property
    def varying(self) -> tuple[str, ...]:
        """The names of environment variables that differ between attempts."""
        return tuple(result_environment(self, ("", 0, 0), ""))

    def result_urls(self, key: AttemptKey) -> list[str]:
        """The result URL on each server; the first one led when the spec was sent."""
        job, index, attempt = key
        path = f"/v1/jobs/{job}/tasks/{index}/attempts/{attempt}/result"
        return [f"{url}{path}" for url in (self.url, *self.others)]


def parse_result_endpoint(raw: object) -> KeeperResultEndpoint | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "spec.reports", dict, "an object")
    url, key, node, ca = (
        parsing.text(fields.get(name, ""), f"spec.reports.{name}") for name in ("url", "key", "node", "ca")
    )
    others = parsing.expect(fields.get("others", []), "spec.reports.others", list, "a list of addresses")
    by_agent = parsing.expect(fields.get("by_agent", False), "spec.reports.by_agent", bool, "true or false")
    urls = tuple(parsing.text(other, "spec.reports.others") for other in others)
    return KeeperResultEndpoint(url, key, node, ca, urls, by_agent)


def attempt_token(reports: KeeperResultEndpoint, key: AttemptKey) -> str:
    """The token of an attempt, derived from the job's key. The server derives the same and stores none."""
    name = f"{key[0]}.{key[1]}.{key[2]}"
    made = hmac.new(reports.key.encode(), name.encode(), hashlib.sha256).hexdigest()
    return f"task_{name}.{reports.node}.{made}"


def token_name(key: AttemptKey) -> str:
    """The name of the token's file in the task's directory."""
    return f"{key[2]}.token"


def result_environment(reports: KeeperResultEndpoint, key: AttemptKey, directory: str) -> dict[str, str]:
    """The attempt's environment variables for its result; `directory` is its task's."""
    if reports.by_agent:
        return {"ROTA_RESULT_FILE": f"{directory}/{REPORT}/{key[2]}.json"}
    urls = reports.result_urls(key)
    ca = {"ROTA_CA_FILE": f"{directory}/ca.pem"} if reports.ca else {}
    file = f"{directory}/{token_name(key)}"
    return {"ROTA_RESULT_URL": urls[0], "ROTA_RESULT_URLS": " ".join(urls), "ROTA_TOKEN_FILE": file, **ca}


def write_token_files(reports: KeeperResultEndpoint, key: AttemptKey, directory: str) -> None:
    """Write the attempt's token and the CA, unless an earlier process of the attempt has them already."""
    if reports.by_agent:
        return
    write_secret(directory, token_name(key), f"{attempt_token(reports, key)}\n".encode(), beside=OUT)
    if reports.ca:
        write_secret(directory, "ca.pem", reports.ca.encode(), beside=OUT)
