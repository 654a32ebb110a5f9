"""The output of one step, cut out of the output of its task."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rota.client.errors import NotFound
from rota.client.views import Chunk, Step


def find_step(steps: Sequence[Step], ref: str) -> Step:
    """The step with this name or number."""
    for step in steps:
        if ref in (step.name, str(step.step)):
            return step
    known = ", ".join(step.name for step in steps)
    hint = f"its steps: {known}" if steps else "only a job with `steps` has steps"
    raise NotFound("not_found", f"there is no step {ref!r}", field="step", hint=hint)


def output_of_step(chunks: Iterable[Chunk], steps: Sequence[Step], chosen: Step) -> Iterator[Chunk]:
    """The chunks between the start of a step and the start of the next; gaps are kept."""
    following = [step for step in steps if step.step == chosen.step + 1]
    for chunk in chunks:
        first = _offset(chosen, chunk.stream)
        last = _offset(following[0], chunk.stream) if following else None
        if first is None:
            continue
        if chunk.is_gap:
            yield chunk
            continue
        start = max(0, first - chunk.offset)
        end = len(chunk.data) if last is None else max(0, last - chunk.offset)
        if data := chunk.data[start:end]:
            yield replace(chunk, offset=chunk.offset + start, data=data)


def _offset(step: Step, stream: str) -> int | None:
    return step.stdout_offset if stream == "stdout" else step.stderr_offset
