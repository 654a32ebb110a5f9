"""The wish that nodes report between other bounds how busy they are."""

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.model.errors import BadField
from rota.model.limits import REPORT_LEAST_MS, REPORT_MOST_MS
from rota.model.node import ReportInterval
from rota.model.plan import EventRecord, Plan


def set_report_interval(
    before: ReportInterval, least_ms: int, most_ms: int, caller: Caller
) -> Plan[ReportInterval]:
    """Both 0: as the server's configuration says. Nodes are told with their next word."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    hint = f"write {REPORT_LEAST_MS} to {REPORT_MOST_MS}, or 0 for both"
    if (least_ms, most_ms) != (0, 0):
        for field, value in (("least_ms", least_ms), ("most_ms", most_ms)):
            if not REPORT_LEAST_MS <= value <= REPORT_MOST_MS:
                raise BadField(field, f"{value} ms are out of bounds", hint)
        if least_ms > most_ms:
            raise BadField("least_ms", f"{least_ms} ms are more than the most, {most_ms} ms", hint)
    wanted = ReportInterval(least_ms, most_ms)
    if wanted == before:
        return Plan(answer=wanted, fenced=True)
    told = f"every {least_ms / 1000:g} to {most_ms / 1000:g} s" if most_ms else "as its configuration says"
    why = f"{caller.name} wants nodes to report {told}"
    return Plan((wanted,), events=(EventRecord("node.pace", why),), why=why, answer=wanted)
