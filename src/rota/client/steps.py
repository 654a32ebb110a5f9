"""What one step of a task wrote, out of what the task wrote."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rota.client.errors import NotFound
from rota.client.views import Chunk, Step


def find_step(steps: Sequence[Step], ref: str) -> Step:
    """By name or number."""
    for step in steps:
        if ref in (step.name, str(step.step)):
            return step
    known = ", ".join(step.name for step in steps)
    hint = f"it has: {known}" if steps else "only a job with `steps` has some"
    raise NotFound("not_found", f"there is no step {ref!r}", field="step", hint=hint)


def of_step(chunks: Iterable[Chunk], steps: Sequence[Step], wanted: Step) -> Iterator[Chunk]:
    """The bytes between its beginning and that of the next one; gaps stay declared."""
    following = [step for step in steps if step.step == wanted.step + 1]
    for chunk in chunks:
        first = _offset(wanted, chunk.stream)
        last = _offset(following[0], chunk.stream) if following else None
        if first is None:
            continue
        if chunk.is_gap:
            yield chunk
            continue
        begin = max(0, first - chunk.offset)
        end = len(chunk.data) if last is None else max(0, last - chunk.offset)
        if data := chunk.data[begin:end]:
            yield replace(chunk, offset=chunk.offset + begin, data=data)


def _offset(step: Step, stream: str) -> int | None:
    return step.stdout_offset if stream == "stdout" else step.stderr_offset
