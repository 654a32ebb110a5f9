"""An operator's wish for a cluster + the view -> a Plan, or Rejected."""

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
SETTINGS_MAX = 32  # of a provider: a few command lines, a region, an image
AUTO = "auto"
NEVER = "never"


def create(view: View, body: object, caller: Caller) -> Plan[str]:
    """What is there as it is wished was created by a request whose answer was lost."""
    access.require_cluster_wide(caller, Action.ADD_CLUSTERS)
    said = fields.known_fields(body, ("name", *DESCRIPTION_FIELDS, *SIZE_FIELDS))
    name = fields.name("name", said.get("name"))
    wish = _with_size(_with_description(ClusterIntent(name), said), said)
    if view.cluster_intents.get(name) == wish:
        return Plan(answer=name, fenced=True)
    if name in view.cluster_intents or (name in view.clusters and name != DEFAULT):
        raise Conflict(f"there is a cluster {name} already", hint=f"change it: rota cluster resize {name}")
    if len(view.clusters) >= CLUSTERS_MAX:
        raise QueueFull(f"there are {len(view.clusters)} clusters already", field="name")
    return _write_intent(wish, f"{caller.name} creates cluster {name}")


def change(view: View, ref: str, body: object, caller: Caller) -> Plan[str]:
    """Its size; or that it is drained, or opened again."""
    access.require_cluster_wide(caller, Action.CHANGE_CLUSTERS)
    said = fields.known_fields(body, (*SIZE_FIELDS, "drain"))
    before = _changeable_intent(view, ref)
    if not said:
        raise BadField("max_nodes", "nothing is to change", 'write {"max_nodes": 8} or {"drain": true}')
    wish = _with_size(before, said)
    if "drain" in said:
        wish = msgspec.structs.replace(wish, drain=fields.flag("drain", said["drain"]), end=False)
    if wish == before:
        return Plan(answer=before.name, fenced=True)
    return _write_intent(wish, f"{caller.name} changes cluster {wish.name}: {_format_changes(said)}")


def delete(view: View, ref: str, caller: Caller) -> Plan[str]:
    """It is drained, and forgotten when nothing is left of it."""
    access.require_cluster_wide(caller, Action.CHANGE_CLUSTERS)
    before = _changeable_intent(view, ref)
    if before.name == DEFAULT:
        raise Conflict("the default cluster is always there", hint="drain it: rota cluster drain default")
    wish = msgspec.structs.replace(before, drain=True, end=True, nodes=None, min_nodes=0)
    return _write_intent(
        wish, f"{caller.name} deletes cluster {wish.name}: it ends when nothing is left of it"
    )


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
    if cluster.like is not None:
        hint = f"change that one: rota cluster resize {cluster.like}"
        raise Conflict(f"cluster {cluster.name} was made like {cluster.like}, and is what that is", hint=hint)
    return cluster_intent(view, ref)


def check_job_cluster(view: View, name: str | None) -> None:
    """Of a job."""
    if name is None:
        return
    cluster = _require_cluster(view, name)
    if not (cluster.takes_jobs or cluster.is_to_come):
        raise Conflict(f"cluster {name} is {cluster.state}", field="cluster")


def check_join_cluster(view: View, name: str) -> None:
    """Of a join token: a failed cluster without a provider is ready again when a node joins it."""
    if _require_cluster(view, name).state is ClusterState.FAILED and cluster_intent(view, name).by_hand:
        return
    check_job_cluster(view, name)


def _require_cluster(view: View, name: str) -> ClusterRecord:
    if name not in view.clusters:
        there = ", ".join(list(view.clusters)[:8])
        raise BadField("cluster", f"there is no cluster '{name}'", f"there are: {there}")
    return view.clusters[name]


def check_enrolling_machine(view: View, cluster: str, labels: Mapping[str, str]) -> None:
    """A machine that was given up meanwhile is about to be ended: nothing may run there."""
    name, known = labels.get(MACHINE_LABEL, ""), view.clusters.get(cluster)
    if known is None or not known.gave(name):
        return
    machine = view.machines.get(name)
    if machine is None or not machine.comes:
        raise NotAllowed(f"machine {name} is not wanted any more", field="token")


def _with_description(wish: ClusterIntent, said: Mapping[str, Any]) -> ClusterIntent:
    provider = said.get("provider", BY_HAND)
    if provider not in PROVIDERS:
        raise BadField("provider", "is not known", f"write {', '.join(PROVIDERS)}")
    settings = _parse_settings(said.get("settings", {}))
    for needed in PROVIDERS[provider]:
        if needed not in settings:
            raise BadField("settings", f"provider {provider} needs {needed}", f"write {needed} = COMMAND")
    capacity = parse_quantities("capacity", said.get("capacity", {}), MACHINE_PARSERS)
    if provider != BY_HAND and not capacity.get("cpu"):
        raise BadField("capacity", "does not say how many cores a machine has", 'write {"cpu": 4}')
    return msgspec.structs.replace(
        wish,
        type=fields.name("type", said.get("type", DEFAULT)),
        region=None if said.get("region") is None else fields.label_value("region", said["region"]),
        labels=fields.granted_labels("labels", said.get("labels", {})),
        provider=provider,
        settings=settings,
        capacity=capacity,
    )


def _parse_settings(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > SETTINGS_MAX:
        raise BadField("settings", "is not a short object", 'write {"create": "./create.sh"}')
    return {fields.name("settings", key): fields.text(f"settings.{key}", text) for key, text in value.items()}


def _with_size(wish: ClusterIntent, said: Mapping[str, Any]) -> ClusterIntent:
    def count(field: str, now: int) -> int:
        return fields.number(field, parse_count, said.get(field, now), 0, CLUSTER_NODES_MAX)

    def copies(field: str, now: int) -> int:
        return fields.number(field, parse_count, said.get(field, now), 1, CLUSTERS_ALIKE_MAX)

    def seconds(field: str, now: float) -> float:
        return fields.number(field, parse_seconds, said.get(field, now), CLUSTER_SECONDS_MAX)

    nodes = said.get("nodes", wish.nodes)
    sized = msgspec.structs.replace(
        wish,
        min_nodes=count("min_nodes", wish.min_nodes),
        max_nodes=count("max_nodes", wish.max_nodes),
        nodes=None if nodes in (None, AUTO) else count("nodes", 0),
        idle_seconds=seconds("idle", wish.idle_seconds),
        join_seconds=seconds("join", wish.join_seconds),
        pause_seconds=seconds("pause", wish.pause_seconds),
        min_clusters=copies("min_clusters", wish.min_clusters),
        max_clusters=copies("max_clusters", wish.max_clusters),
        wait_seconds=seconds("wait", wish.wait_seconds),
        fail_after_seconds=_parse_fail_after(wish, said),
    )
    _check_sizes(sized)
    _check_times(sized)
    _check_cluster_counts(sized)
    return sized


def _parse_fail_after(wish: ClusterIntent, said: Mapping[str, Any]) -> float | None:
    given = said.get("fail_after")
    if given is None:
        return wish.fail_after_seconds
    if not wish.by_hand:
        raise BadField("fail_after", "a cluster with a provider fails when its provider does", "leave it out")
    if given == NEVER:
        return NEVER_FAILS
    seconds = fields.number("fail_after", parse_seconds, given, CLUSTER_SECONDS_MAX)
    if seconds < FAIL_AFTER_SECONDS_MIN:
        days = CLUSTER_SECONDS_MAX // (24 * 3600)
        hint = f"write {FAIL_AFTER_SECONDS_MIN:g}s to {days}d, or {NEVER}"
        raise BadField("fail_after", f"{seconds:g} s is too short", hint)
    return seconds


def _check_sizes(wish: ClusterIntent) -> None:
    if wish.by_hand:
        if wish.max_nodes or wish.min_nodes or wish.nodes is not None:
            hint = f"leave it out, or create it with a provider: {', '.join(PROVIDERS)}"
            raise BadField("max_nodes", "nobody makes nodes for a cluster without a provider", hint)
        return
    if wish.max_nodes == 0:
        raise BadField("max_nodes", "0 would let it have no node", "write the most nodes it may have")
    if wish.min_nodes > wish.max_nodes:
        hint = f"write a number from 0 to {wish.max_nodes}"
        raise BadField("min_nodes", f"{wish.min_nodes} is more than max_nodes", hint)
    if wish.nodes is not None and wish.nodes > wish.max_nodes:
        hint = f"write a number from 0 to {wish.max_nodes}, or raise max_nodes"
        raise BadField("nodes", f"{wish.nodes} is more than max_nodes", hint)


def _check_times(wish: ClusterIntent) -> None:
    if wish.join_seconds == 0:
        raise BadField("join", "0 s leaves no time to join", "write 2m")
    least, most = PROVIDER_PAUSE_LEAST_SECONDS, PROVIDER_PAUSE_LAST_MS / 1000
    if not least <= wish.pause_seconds <= most:
        hint = f"write {least:g} to {most:g} seconds"
        raise BadField("pause", f"{wish.pause_seconds:g} s cannot be used", hint)


def _check_cluster_counts(wish: ClusterIntent) -> None:
    if wish.by_hand and wish.max_clusters > 1:
        hint = f"leave it out, or create it with a provider: {', '.join(PROVIDERS)}"
        raise BadField("max_clusters", "nobody makes clusters without a provider", hint)
    if wish.min_clusters > wish.max_clusters:
        hint = f"write a number from 1 to {wish.max_clusters}"
        raise BadField("min_clusters", f"{wish.min_clusters} is more than max_clusters", hint)


def _format_changes(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{field} {fields.printable(str(value))[:20]}" for field, value in said.items())


def _write_intent(wish: ClusterIntent, why: str) -> Plan[str]:
    event = EventRecord("cluster.wished", why, cluster=wish.name)
    return Plan((wish,), events=(event,), why=why, answer=wish.name)
