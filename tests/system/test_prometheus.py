"""A real Prometheus scrapes a real server, and answers a query."""

import json
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from rota.testing.cluster import LocalCluster, free_ports
from rota.testing.processes import until
from tests.machine import needs

pytestmark = [
    pytest.mark.system,
    needs("prometheus"),
]
CONFIG = """
scrape_configs:
  - job_name: rota
    scrape_interval: 1s
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ["{address}"]}}]
"""


def test_prometheus_scrapes_a_server_and_answers_a_query(shared: LocalCluster, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(token=shared.token_file, address=shared.http))
    (port,) = free_ports(1)
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]

    def ready_nodes() -> float | None:
        query = urlencode({"query": 'rota_nodes{state="ready"}'})
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except (URLError, OSError):
            return None
        return float(found[0]["value"][1]) if found else None

    with (tmp_path / "log").open("wb") as log:
        prometheus = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            answered = until(ready_nodes, "Prometheus answers", 60)
        finally:
            prometheus.kill()
            prometheus.wait()

    assert answered == 1
