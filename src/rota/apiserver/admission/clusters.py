"""Create, resize, drain and delete clusters: a request + the view -> a Plan with the intent, or a refusal."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.spec import fields
from rota.apiserver.spec.quantities import MACHINE_PARSERS, parse_quantities
from rota.model.amounts import parse_count, parse_seconds
from rota.model.cluster import BY_HAND, DEFAULT, NEVER_FAILS, PROVIDERS, ClusterIntent, ClusterRecord
from rota.model.cluster import MACHINE as MACHINE_LABEL
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, QueueFull
from rota.model.lifecycle import ClusterState
from rota.model.limits import (
    CLUSTER_NODES_MAX,
    CLUSTER_SECONDS_MAX,
    CLUSTERS_ALIKE_MAX,
    CLUSTERS_MAX,
    FAIL_AFTER_SECONDS_MIN,
    PROVIDER_PAUSE_LAST_MS,
    PROVIDER_PAUSE_LEAST_SECONDS,
)
from rota.model.plan import EventRecord, Plan
from rota.model.view import View

DESCRIPTION_FIELDS = ("type", "region", "labels", "provider", "settings", "capacity")
SIZE_FIELDS = (
    *("min_nodes", "max_nodes", "nodes", "idle", "join", "pause", "min_clusters", "max_clusters", "wait"),
    "fail_after",
)
SETTINGS_MAX = 32  # of a provider: some command lines, a region, an image
AUTO = "auto"
NEVER = "never"


def create(view: View, body: object, caller: Caller) -> Plan[str]:
    """Create a cluster. If the same one exists, the request is taken for a repeat whose answer was lost."""
    access.require_cluster_wide(caller, Action.ADD_CLUSTERS)
    given_fields = fields.known_fields(body, ("name", *DESCRIPTION_FIELDS, *SIZE_FIELDS))
    name = fields.name("name", given_fields.get("name"))
    intent = _with_size(_with_description(ClusterIntent(name), given_fields), given_fields)
    if view.cluster_intents.get(name) == intent:
        return Plan(answer=name, fenced=True)
    if name in view.cluster_intents or (name in view.clusters and name != DEFAULT):
        raise Conflict(f"cluster {name} exists already", hint=f"change it: rota cluster resize {name}")
    if len(view.clusters) >= CLUSTERS_MAX:
        raise QueueFull(f"there are {len(view.clusters)} clusters already", field="name")
    return _write_intent(intent, f"{caller.name} creates cluster {name}")


def change(view: View, ref: str, body: object, caller: Caller) -> Plan[str]:
    """Change the size of a cluster, drain it, or open it again."""
    access.require_cluster_wide(caller, Action.CHANGE_CLUSTERS)
    given_fields = fields.known_fields(body, (*SIZE_FIELDS, "drain"))
    before = _changeable_intent(view, ref)
    if not given_fields:
        raise BadField("max_nodes", "nothing is to change", 'write {"max_nodes": 8} or {"drain": true}')
    intent = _with_size(before, given_fields)
    if "drain" in given_fields:
        intent = msgspec.structs.replace(intent, drain=fields.flag("drain", given_fields["drain"]), end=False)
    if intent == before:
        return Plan(answer=before.name, fenced=True)
    return _write_intent(
        intent, f"{caller.name} changes cluster {intent.name}: {_format_changes(given_fields)}"
    )


def delete(view: View, ref: str, caller: Caller) -> Plan[str]:
    """Drain a cluster, and delete its records when it is empty."""
    access.require_cluster_wide(caller, Action.CHANGE_CLUSTERS)
    before = _changeable_intent(view, ref)
    if before.name == DEFAULT:
        raise Conflict("the default cluster cannot be deleted", hint="drain it: rota cluster drain default")
    # Without sizes: a fixed or least number of nodes would be created again while the cluster empties.
    intent = msgspec.structs.replace(before, drain=True, end=True, nodes=None, min_nodes=0)
    return _write_intent(intent, f"{caller.name} deletes cluster {intent.name}: it ends when it is empty")


def find_cluster(view: View, ref: str) -> ClusterRecord:
    found = view.clusters.get(ref)
    if found is None:
        near = get_close_matches(ref, list(view.clusters), 1)
        hint = f"did you mean {near[0]}?" if near else "see what there is: rota cluster ls"
        raise NotFound(f"no cluster is called '{fields.printable(ref)[:60]}'", hint=hint)
    return found


def cluster_intent(view: View, ref: str) -> ClusterIntent:
    name = find_cluster(view, ref).name
    return view.cluster_intents.get(name) or ClusterIntent(name)


def _changeable_intent(view: View, ref: str) -> ClusterIntent:
    cluster = find_cluster(view, ref)
    # Its intent is derived from the original's and has no record: a change would be
    # lost at the next derivation.
    if cluster.like is not None:
        hint = f"change the group: rota cluster resize {cluster.like}"
        raise Conflict(
            f"cluster {cluster.name} was created by cluster group {cluster.like}, and has its settings",
            hint=hint,
        )
    return cluster_intent(view, ref)


def check_job_cluster(view: View, name: str | None) -> None:
    """Refuse a cluster that a job cannot be submitted to."""
    if name is None:
        return
    cluster = _require_cluster(view, name)
    if not (cluster.takes_jobs or cluster.may_take_jobs_later):
        raise Conflict(f"cluster {name} is {cluster.state}", field="cluster")


def check_join_cluster(view: View, name: str) -> None:
    """Refuse a cluster that no node can join. A failed one without a provider recovers when a node joins."""
    if _require_cluster(view, name).state is ClusterState.FAILED and cluster_intent(view, name).by_hand:
        return
    check_job_cluster(view, name)


def _require_cluster(view: View, name: str) -> ClusterRecord:
    if name not in view.clusters:
        names = ", ".join(list(view.clusters)[:8])
        raise BadField("cluster", f"there is no cluster '{name}'", f"there are: {names}")
    return view.clusters[name]


def check_enrolling_machine(view: View, cluster: str, labels: Mapping[str, str]) -> None:
    """Refuse a machine that is no longer desired. Its removal is under way, so no task may start on it."""
    name, known = labels.get(MACHINE_LABEL, ""), view.clusters.get(cluster)
    if known is None or not known.has_requested(name):
        return
    machine = view.machines.get(name)
    if machine is None or not machine.is_being_created:
        raise NotAllowed(f"machine {name} is no longer needed", field="token")


def _with_description(intent: ClusterIntent, given_fields: Mapping[str, Any]) -> ClusterIntent:
    provider = given_fields.get("provider", BY_HAND)
    if provider not in PROVIDERS:
        raise BadField("provider", "is not known", f"write {', '.join(PROVIDERS)}")
    settings = _parse_settings(given_fields.get("settings", {}))
    for needed in PROVIDERS[provider]:
        if needed not in settings:
            raise BadField("settings", f"provider {provider} needs {needed}", f"write {needed} = COMMAND")
    capacity = parse_quantities("capacity", given_fields.get("capacity", {}), MACHINE_PARSERS)
    if provider != BY_HAND and not capacity.get("cpu"):
        raise BadField("capacity", "does not say how many cores a machine has", 'write {"cpu": 4}')
    return msgspec.structs.replace(
        intent,
        type=fields.name("type", given_fields.get("type", DEFAULT)),
        region=None
        if given_fields.get("region") is None
        else fields.label_value("region", given_fields["region"]),
        labels=fields.granted_labels("labels", given_fields.get("labels", {})),
        provider=provider,
        settings=settings,
        capacity=capacity,
    )


def _parse_settings(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > SETTINGS_MAX:
        raise BadField("settings", "is not a short object", 'write {"create": "./create.sh"}')
    return {fields.name("settings", key): fields.text(f"settings.{key}", text) for key, text in value.items()}


def _with_size(intent: ClusterIntent, given_fields: Mapping[str, Any]) -> ClusterIntent:
    def count(field: str, now: int) -> int:
        return fields.number(field, parse_count, given_fields.get(field, now), 0, CLUSTER_NODES_MAX)

    def copies(field: str, now: int) -> int:
        return fields.number(field, parse_count, given_fields.get(field, now), 1, CLUSTERS_ALIKE_MAX)

    def seconds(field: str, now: float) -> float:
        return fields.number(field, parse_seconds, given_fields.get(field, now), CLUSTER_SECONDS_MAX)

    nodes = given_fields.get("nodes", intent.nodes)
    sized = msgspec.structs.replace(
        intent,
        min_nodes=count("min_nodes", intent.min_nodes),
        max_nodes=count("max_nodes", intent.max_nodes),
        nodes=None if nodes in (None, AUTO) else count("nodes", 0),
        idle_seconds=seconds("idle", intent.idle_seconds),
        join_seconds=seconds("join", intent.join_seconds),
        pause_seconds=seconds("pause", intent.pause_seconds),
        min_clusters=copies("min_clusters", intent.min_clusters),
        max_clusters=copies("max_clusters", intent.max_clusters),
        wait_seconds=seconds("wait", intent.wait_seconds),
        fail_after_seconds=_parse_fail_after(intent, given_fields),
    )
    _check_sizes(sized)
    _check_times(sized)
    _check_cluster_counts(sized)
    return sized


def _parse_fail_after(intent: ClusterIntent, given_fields: Mapping[str, Any]) -> float | None:
    given = given_fields.get("fail_after")
    if given is None:
        return intent.fail_after_seconds
    if not intent.by_hand:
        raise BadField("fail_after", "a cluster with a provider fails when its provider does", "leave it out")
    if given == NEVER:
        return NEVER_FAILS
    seconds = fields.number("fail_after", parse_seconds, given, CLUSTER_SECONDS_MAX)
    if seconds < FAIL_AFTER_SECONDS_MIN:
        days = CLUSTER_SECONDS_MAX // (24 * 3600)
        hint = f"write {FAIL_AFTER_SECONDS_MIN:g}s to {days}d, or {NEVER}"
        raise BadField("fail_after", f"{seconds:g} s is too short", hint)
    return seconds


def _check_sizes(intent: ClusterIntent) -> None:
    if intent.by_hand:
        if intent.max_nodes or intent.min_nodes or intent.nodes is not None:
            hint = f"leave it out, or create it with a provider: {', '.join(PROVIDERS)}"
            raise BadField("max_nodes", "a cluster without a provider cannot create nodes", hint)
        return
    if intent.max_nodes == 0:
        raise BadField("max_nodes", "0 would allow no node", "write the most nodes it may have")
    if intent.min_nodes > intent.max_nodes:
        hint = f"write a number from 0 to {intent.max_nodes}"
        raise BadField("min_nodes", f"{intent.min_nodes} is more than max_nodes", hint)
    if intent.nodes is not None and intent.nodes > intent.max_nodes:
        hint = f"write a number from 0 to {intent.max_nodes}, or raise max_nodes"
        raise BadField("nodes", f"{intent.nodes} is more than max_nodes", hint)


def _check_times(intent: ClusterIntent) -> None:
    if intent.join_seconds == 0:
        raise BadField("join", "0 s leaves no time to join", "write 2m")
    least, most = PROVIDER_PAUSE_LEAST_SECONDS, PROVIDER_PAUSE_LAST_MS / 1000
    if not least <= intent.pause_seconds <= most:
        hint = f"write {least:g} to {most:g} seconds"
        raise BadField("pause", f"{intent.pause_seconds:g} s is out of range", hint)


def _check_cluster_counts(intent: ClusterIntent) -> None:
    if intent.by_hand and intent.max_clusters > 1:
        hint = f"leave it out, or create it with a provider: {', '.join(PROVIDERS)}"
        raise BadField("max_clusters", "a cluster without a provider cannot create others", hint)
    if intent.min_clusters > intent.max_clusters:
        hint = f"write a number from 1 to {intent.max_clusters}"
        raise BadField("min_clusters", f"{intent.min_clusters} is more than max_clusters", hint)


def _format_changes(given_fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{field} {fields.printable(str(value))[:20]}" for field, value in given_fields.items())


def _write_intent(intent: ClusterIntent, why: str) -> Plan[str]:
    event = EventRecord("cluster.wished", why, cluster=intent.name)
    return Plan((intent,), events=(event,), why=why, answer=intent.name)
