"""The contract of filters and scores, which the scheduler relies on; a plugin's own tests call it.

    from rota.testing.plugin_suite import Samples, check_filter

    def test_my_filter_keeps_the_rules() -> None:
        check_filter(MyFilter(), Samples(labels=({"node": "lab-1"}, {"node": "desk-1"})))

An answer is cached until its node changes, and requested for several tasks ahead. So it must depend on that
node alone: the same for one node or many, in any order, whatever the other nodes are like.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

from rota.engine.state.mirror import Mirror
from rota.model.amounts import CPU, GPU, MEMORY
from rota.model.columns import Array
from rota.model.ids import NodeId
from rota.model.node import NodeLoad
from rota.model.shape import Policy, Shape
from rota.scheduler.placement.board import Board, NodeSlice
from rota.scheduler.placement.filters import Filter
from rota.scheduler.placement.scores import Score
from rota.testing.builders import GIB, add_node

SHAPES = (
    Shape(()),
    Shape(((CPU, 500), (MEMORY, GIB)), noise="disk"),
    Shape(((CPU, 1000), (GPU, 500)), policy=Policy.PACK),
)
LABELS: tuple[Mapping[str, str], ...] = (
    {},
    {"region": "eu", "rack": "r1"},
    {"region": "us", "rack": "r2", "ssd": "yes"},
)
_AHEAD = 2  # tasks

Ask = Callable[[NodeSlice], Any]


class Samples(NamedTuple):
    """Shapes and nodes' labels that make a difference to the plugin; a label `node` names the node."""

    shapes: tuple[Shape, ...] = SHAPES
    labels: tuple[Mapping[str, str], ...] = LABELS


PLAIN = Samples()


def check_filter(plugin: Filter, samples: Samples = PLAIN) -> None:
    """Raise AssertionError with the rule that the plugin violates."""
    _check(plugin.name, plugin.allows, samples)
    for nodes in _all_nodes(samples):
        answer = plugin.allows(nodes)
        assert answer.dtype == bool, f"{plugin.name}: answers {answer.dtype}, not bool"


def check_score(plugin: Score, samples: Samples = PLAIN) -> None:
    """Raise AssertionError with the rule that the plugin violates."""
    _check(plugin.name, plugin.points, samples)
    for nodes in _all_nodes(samples):
        points = plugin.points(nodes).tolist()
        assert all(map(isfinite, points)), f"{plugin.name}: points that are not finite numbers"


def _check(name: str, ask: Ask, samples: Samples) -> None:
    assert name, "it has no name"
    assert isinstance(name, str), "its name is not a string"
    for shape in samples.shapes:
        board = _board(samples.labels)
        every = _slots(board)
        together = _answers(name, ask, NodeSlice(board, shape, every))
        assert not _answers(name, ask, NodeSlice(board, shape, every[:0])), (
            f"{name}: answers where none was asked"
        )
        _follows_from_each_node(name, ask, together, (board, shape))
        _looks_at_no_other(name, ask, shape, samples)
        _counts_tasks_ahead(name, ask, shape, samples)
        # Asked last, after other questions: a plugin with a state of its own would answer differently now.
        again = _answers(name, ask, NodeSlice(board, shape, every))
        assert again == together, f"{name}: another answer when asked again"


def _follows_from_each_node(name: str, ask: Ask, together: list[Any], where: tuple[Board, Shape]) -> None:
    every = _slots(where[0])
    for slot in range(len(together)):
        alone = _answers(name, ask, NodeSlice(*where, every[slot : slot + 1]))
        assert alone == [together[slot]], f"{name}: another answer for a node alone than among others"
    backwards = _answers(name, ask, NodeSlice(*where, every[::-1]))
    assert backwards == together[::-1], f"{name}: the order of the nodes makes a difference"
    twice = _answers(name, ask, NodeSlice(*where, every.repeat(2)))
    assert twice[::2] == together == twice[1::2], f"{name}: another answer for a node that is given twice"


def _looks_at_no_other(name: str, ask: Ask, shape: Shape, samples: Samples) -> None:
    """Change every second node; the answers for the others must stay."""
    before, after = _board(samples.labels), _board(samples.labels, busy_every=2)
    kept = _slots(before)[::2]
    first = _answers(name, ask, NodeSlice(before, shape, kept))
    assert first == _answers(name, ask, NodeSlice(after, shape, kept)), (
        f"{name}: looks at nodes it is not given"
    )


def _counts_tasks_ahead(name: str, ask: Ask, shape: Shape, samples: Samples) -> None:
    """Tasks that are assumed ahead count like tasks that are allocated."""
    if any(resource == GPU for resource, _ in shape.needs):
        return  # GPUs are chosen one by one, never ahead
    board = _board(samples.labels)
    every = _slots(board)
    assumed = _answers(name, ask, NodeSlice(board, shape, every, every * 0 + _AHEAD))
    for slot in every.tolist():
        board.allocate(shape, slot, _AHEAD)
    allocated = _answers(name, ask, NodeSlice(board, shape, every))
    assert assumed == allocated, f"{name}: looks past the nodes it is given, at what is kept elsewhere"


def _answers(name: str, ask: Ask, nodes: NodeSlice) -> list[Any]:
    """One answer per node; the plugin must not change its input."""
    before = _contents(nodes)
    answer = ask(nodes)
    assert getattr(answer, "shape", None) == (len(nodes),), f"{name}: not an array of one answer per node"
    assert _contents(nodes) == before, f"{name}: changes what it was given"
    found: list[Any] = answer.tolist()
    return found


def _contents(nodes: NodeSlice) -> list[Any]:
    arrays = (nodes.slots, nodes.amounts, nodes.idle(), nodes.load, nodes.devices)
    return [*(array.tolist() for array in arrays), [dict(labels) for labels in nodes.labels]]


def _all_nodes(samples: Samples) -> Iterator[NodeSlice]:
    for shape in samples.shapes:
        for board in (_board(samples.labels), _board(samples.labels, busy_every=2), _board(())):
            yield NodeSlice(board, shape, _slots(board))


def _board(labels: Iterable[Mapping[str, str]], busy_every: int | None = None) -> Board:
    """Two nodes of different sizes for each set of labels; every `busy_every`-th one busy and renamed."""
    mirror = Mirror()
    sizes = ({CPU: 4000, MEMORY: 8 * GIB}, {CPU: 16_000, MEMORY: 64 * GIB, GPU: 2000})
    every = [(dict(given), size) for given in labels for size in sizes]
    for number, (given, size) in enumerate(every):
        busy = busy_every is not None and number % busy_every == busy_every - 1
        name = f"{given.pop('node', 'node')}-{number}" + ("-busy" if busy else "")
        add_node(mirror, name, size, labels={} if busy else given)
        if busy:
            mirror.measure(NodeId(name), NodeLoad(size[CPU], memory_free=0))
    board = Board(mirror.node_table)
    board.sync()
    return board


def _slots(board: Board) -> Array:
    found: Array = (board.capacity[0] >= 0).nonzero()[0]
    return found
