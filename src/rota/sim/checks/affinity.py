"""Affinity, anti-affinity and spread, recomputed from the placements of each commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.model.cluster import DEFAULT
from rota.model.job import JobSpec
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility
from rota.model.shape import AffinityTerm, Constraint, Op, SpreadTerm
from rota.rules.node_labels import matched_labels
from rota.sim.world.invariant import InvariantBroken

Placed = Sequence[tuple[JobSpec, str]]  # job and node of each task


class AffinityChecks:
    """Live attempts by job and node; only required terms are checked, not those with a weight."""

    def __init__(self, known: Mapping[str, Any], is_healthy: Callable[[str], bool]) -> None:
        self._known = known
        self._is_healthy = is_healthy
        self._on: dict[str, dict[str, int]] = {}
        self._specs: dict[str, JobSpec] = {}  # of jobs with live attempts
        self._repelling: dict[str, JobSpec] = {}  # those with anti-affinity terms
        self._left: list[tuple[JobSpec, str]] = []  # ended in this commit

    def add(self, spec: JobSpec, node: str) -> None:
        self._specs[spec.id] = spec
        if spec.apart:
            self._repelling[spec.id] = spec
        nodes = self._on.setdefault(spec.id, {})
        nodes[node] = nodes.get(node, 0) + 1

    def remove(self, spec: JobSpec, node: str) -> None:
        nodes = self._on[spec.id]
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self._on[spec.id], self._specs[spec.id]
            self._repelling.pop(spec.id, None)
        self._left.append((spec, node))

    def fulfils(self, node: str, condition: Constraint) -> bool:
        return holds(condition, self._labels(node))

    def check(self, placed: Placed) -> None:
        """Check the placements of one commit, after all its records are applied."""
        for job, node in {(spec.id, node): None for spec, node in placed}:
            spec = self._specs[job]
            self._check_apart(spec, node)
            for rule in spec.spread:
                if rule.weight is None:
                    self._check_spread(spec, node, rule)
        for spec in {spec.id: spec for spec, _ in placed if spec.near}.values():
            for term in spec.near:
                if term.weight is None:
                    self._check_near(
                        spec, term, [node for other, node in placed if other.id == spec.id], placed
                    )
        self._left.clear()

    def _check_apart(self, spec: JobSpec, node: str) -> None:
        others = self._specs if spec.apart else self._repelling
        for other in others.values():
            if other.namespace != spec.namespace:
                continue
            terms = [term for term in spec.apart if holds(term.jobs, _labels_of(other))]
            terms += [term for term in other.apart if holds(term.jobs, _labels_of(spec))]
            for term in terms:
                count = self._count_in(other, term, self._domain(node, term)) - (other.id == spec.id)
                if term.weight is None and count > 0:
                    raise InvariantBroken(
                        f"job {spec.id} was placed on {node} beside job {other.id}: apart {term}"
                    )

    def _check_near(self, spec: JobSpec, term: AffinityTerm, nodes: list[str], placed: Placed) -> None:
        """A match that was live at any moment of this commit is enough.

        The first task of a group that is near itself may be anywhere if no match is live.
        """
        alone = 0
        own = holds(term.jobs, _labels_of(spec))
        fit = [other for other in self._specs.values() if _fits(spec, term, other)]
        ended = [self._domain(node, term) for other_spec, node in self._left if _fits(spec, term, other_spec)]
        came = sum(
            _fits(spec, term, other_spec) and self._domain(node, term) is not None
            for other_spec, node in placed
        )
        for node in nodes:
            domain = self._domain(node, term)
            if domain is None:
                raise InvariantBroken(
                    f"job {spec.id} was placed on {node}, which has no such label: near {term}"
                )
            matching = sum(self._count_in(other, term, domain) for other in fit) - own
            alone += not matching and domain not in ended
        lived = sum(self._count_anywhere(other, term) for other in fit) - came
        if alone > (own and not lived):
            where = ", ".join(nodes)
            raise InvariantBroken(f"of job {spec.id} on {where} {alone} have no match: near {term}")

    def _check_spread(self, spec: JobSpec, node: str, rule: SpreadTerm) -> None:
        domain = self._domain(node, rule)
        if domain is None:
            raise InvariantBroken(
                f"job {spec.id} was placed on {node}, which has no such label: spread over {rule}"
            )
        here = self._count_in(spec, rule, domain)
        for other in {self._domain(node_name, rule): None for node_name in self._fitting(spec)}:
            if other is not None:
                left = sum(
                    other_spec.id == spec.id and self._domain(at, rule) == other
                    for other_spec, at in self._left
                )
                count = self._count_in(spec, rule, other) + left
                if here - count > rule.skew:
                    raise InvariantBroken(
                        f"job {spec.id} has {here} tasks in {domain}, {count} in {other}: {rule}"
                    )

    def _fitting(self, spec: JobSpec) -> list[str]:
        """Nodes that the leader must consider open for the job, regardless of free resources."""
        keys = [key for key in self._known if key.startswith("node/") and key.endswith("/status")]
        nodes = [key.split("/")[1] for key in keys]
        return [
            node
            for node in nodes
            if self._is_open(node) and self._admits(node, spec) and self._is_healthy(node)
        ]

    def _is_open(self, node: str) -> bool:
        intent, status = self._known.get(f"node/{node}/wish"), self._known[f"node/{node}/status"]
        is_eligible = intent is None or intent.eligibility is Eligibility.OPEN
        return is_eligible and status.state is NodeState.READY and status.accepts_work

    def _admits(self, node: str, spec: JobSpec) -> bool:
        """Whether the node is in the job's cluster, untainted, and satisfies its constraints."""
        intent, home = self._known.get(f"node/{node}/wish"), home_of(self._known, spec)
        may = self._known[f"node/{node}/spec"].cluster == home and (intent is None or not intent.taints)
        return may and all(self.fulfils(node, constraint) for constraint in spec.where)

    def _count_in(self, spec: JobSpec, term: AffinityTerm | SpreadTerm, domain: str | None) -> int:
        """Number of live attempts of a job in a domain; 0 if the domain is None."""
        here = self._on.get(spec.id, {}).items()
        return sum(count for node, count in here if domain is not None and self._domain(node, term) == domain)

    def _count_anywhere(self, spec: JobSpec, term: AffinityTerm) -> int:
        here = self._on.get(spec.id, {}).items()
        return sum(count for node, count in here if self._domain(node, term) is not None)

    def _domain(self, node: str, term: AffinityTerm | SpreadTerm) -> str | None:
        return node if term.over == "node" else self._labels(node).get(term.over)

    def _labels(self, node: str) -> dict[str, str]:
        spec, status = self._known[f"node/{node}/spec"], self._known.get(f"node/{node}/status")
        reported = {} if status is None else status.labels
        granted = {**spec.labels, "node": spec.name, "cluster": spec.cluster}
        return matched_labels(reported, granted, frozenset())


def home_of(known: Mapping[str, Any], spec: JobSpec) -> str:
    """The cluster to which the job is assigned."""
    assigned = known.get(f"job/{spec.id}/cluster")
    return DEFAULT if assigned is None else str(assigned.cluster)


def _fits(spec: JobSpec, term: AffinityTerm, other: JobSpec) -> bool:
    return other.namespace == spec.namespace and holds(term.jobs, _labels_of(other))


def _labels_of(spec: JobSpec) -> dict[str, str]:
    return {**spec.labels, "job": spec.name}


def holds(condition: Constraint, labels: Mapping[str, str]) -> bool:
    value = labels.get(condition.label)
    match condition.op:
        case Op.EXISTS:
            return value is not None
        case Op.EQUAL | Op.IN:
            return value in condition.values
        case Op.UNEQUAL | Op.NOT_IN:
            return value not in condition.values
        case Op.LESS | Op.MORE:
            return True  # no seed asks for versions
