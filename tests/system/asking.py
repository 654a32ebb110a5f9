"""Asks a server over and over with one token: ADDRESS TOKEN CONNECTIONS PAUSE; ends when its input is closed.

It prints `ready` once every connection has had an answer, and at its end a line: the number of answers of
status 200, and the median seconds that one took.
"""

import asyncio
import statistics
import sys
import time


async def main(address: str, token: str, connections: int, pause: float) -> None:
    over, taken = asyncio.Event(), list[float]()
    head = f"GET /v1/jobs?limit=5 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    ready = asyncio.Semaphore(0)

    async def ask_again_and_again() -> None:
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        is_first = True
        while not over.is_set():
            began = time.monotonic()
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(int(length.split()[1]))
            if answer.split()[1] == b"200":
                taken.append(time.monotonic() - began)
            if is_first:
                ready.release()
                is_first = False
            await asyncio.sleep(pause)
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(ask_again_and_again())
        for _ in range(connections):
            await ready.acquire()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        taken.clear()
        await asyncio.to_thread(sys.stdin.read)
        over.set()
    print(len(taken), statistics.median(taken or [0.0]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
