"""Use Rota from Python: submit an array, print each task as it ends, read the output of one.

Start a cluster with `rota dev`, then: python sdk.py
"""

import rota


def main() -> None:
    with rota.connect() as cluster:
        job = cluster.submit("sh", "-c", "echo task $ROTA_INDEX of $ROTA_COUNT", name="sdk", cpu=0.1, count=8)
        for task in job.as_completed():
            print(f"task {task.index} {task.state} on {task.node} with exit code {task.exit_code}")
        print(f"job {job.id} {job.state}; output of task 3: {job.logs(index=3).strip()}")


if __name__ == "__main__":
    main()
