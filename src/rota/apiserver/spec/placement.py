"""Terms of a spec on placement and dependencies: where, prefer, near, apart, spread, tolerate and after.

Each term is a short text, such as `region == eu` or `app == web over rack weight 5`.
"""

import re

from rota.apiserver.spec import fields
from rota.apiserver.spec.fields import printable
from rota.model.amounts import parse_count
from rota.model.dependency import Dependency, DependencyCondition
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.limits import AFTER_MAX, LABEL_VALUE_MAX, NAME_LENGTH_MAX
from rota.model.shape import AffinityTerm, Constraint, Op, Preference, SpreadTerm

LABEL_SHORTHANDS = {
    "region": "region",
    "on": "node",
    "gpu_model": "gpu_model",
}  # field -> the label that it constrains

WEIGHT_MAX = 100  # points: as much as an idle node scores above a full one
SKEW_MAX = 1000  # a larger skew would spread nothing

_CONDITION = re.compile(
    r"(?P<label>[^\s=!<>,]+)\s*(?P<op>==|!=|<=|>=|=|<|>|\bnot\s+in\b|\bin\b|\bexists\b)\s*(?P<operand>.*)",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})*")
_WHERE_HINT = "write 'region == eu', 'arch in x86_64,arm64', 'gpu_model exists' or 'cuda > 12.1'"
_PREFER_HINT = f"write 'ssd exists weight 20', with a weight from -{WEIGHT_MAX} to {WEIGHT_MAX} that is not 0"
_TERM_HINT = "write 'job == db', 'app == web over rack' or 'app == web over region weight 50'"
_SPREAD_HINT = "write 'region', 'rack skew 2' or 'region weight 30'"
_AFTER_HINT = "write '12', 'build' or '12:failure', or {job = \"12\", on = \"failure\"}"
_JOB_REF_MAX = NAME_LENGTH_MAX + 32  # a name, or the name of a cron with the time of one of its runs
_TOLERATE_HINT = "write 'dedicated', 'dedicated=ci', or '*' for every taint"


def parse_constraints(field: str, value: object) -> tuple[Constraint, ...]:
    return tuple(
        parse_constraint(field, text, _WHERE_HINT) for text in fields.texts(field, value, _WHERE_HINT)
    )


def parse_preferences(field: str, value: object) -> tuple[Preference, ...]:
    return tuple(_parse_preference(field, text) for text in fields.texts(field, value, _PREFER_HINT))


def parse_affinity_terms(field: str, value: object) -> tuple[AffinityTerm, ...]:
    return tuple(_parse_affinity_term(field, text) for text in fields.texts(field, value, _TERM_HINT))


def parse_spreads(field: str, value: object) -> tuple[SpreadTerm, ...]:
    return tuple(_parse_spread(field, text) for text in fields.texts(field, value, _SPREAD_HINT))


def parse_tolerations(field: str, value: object) -> tuple[str, ...]:
    return tuple(_parse_toleration(field, text) for text in fields.texts(field, value, _TOLERATE_HINT))


def parse_constraint(field: str, text: str, hint: str) -> Constraint:
    """`region == eu` -> a constraint on a label."""
    shown = printable(text)
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise BadField(field, f"'{shown}' is not a condition", hint)
    label, sign, operand = found["label"], " ".join(found["op"].split()), found["operand"]
    fields.label_name(field, label, hint)
    if sign not in list(Op):
        instead = {"=": "==", "<=": "<", ">=": ">"}[sign]
        raise BadField(field, f"'{shown}' uses {sign}", f"write '{label} {instead} {printable(operand)}'")
    return Constraint(label, Op(sign), _parse_operands(field, Op(sign), shown, operand, hint))


def _parse_operands(field: str, op: Op, shown: str, operand: str, hint: str) -> tuple[str, ...]:
    values: tuple[str, ...] = (_unquoted(operand),)
    match op:
        case Op.EXISTS:
            if operand:
                raise BadField(field, f"'{shown}' has something after exists", "write 'gpu_model exists'")
            return ()
        case Op.IN | Op.NOT_IN:
            values = tuple(_unquoted(part) for part in operand.split(","))
        case Op.LESS | Op.MORE:
            if _NUMBER.fullmatch(values[0]) is None:
                problem = f"'{shown}' does not compare with a number or version"
                raise BadField(field, problem, "write 'ram_gb > 8' or 'driver < 550.40'")
        case Op.EQUAL | Op.UNEQUAL:
            pass
    if not all(values) or any(len(value) > LABEL_VALUE_MAX for value in values):
        raise BadField(field, f"'{shown}' has no value to compare with, or too long a one", hint)
    return values


def _parse_preference(field: str, text: str) -> Preference:
    term, options = _split_options(field, text, ("weight",), _PREFER_HINT)
    if "weight" not in options:
        raise BadField(field, f"'{printable(text)}' has no weight", _PREFER_HINT)
    weight = _parse_whole(f"{field} weight", options["weight"], -WEIGHT_MAX, field)
    if weight == 0:
        raise BadField(field, f"'{printable(text)}' has the weight 0", _PREFER_HINT)
    return Preference(parse_constraint(field, term, _PREFER_HINT), weight)


def _parse_affinity_term(field: str, text: str) -> AffinityTerm:
    term, options = _split_options(field, text, ("over", "weight"), _TERM_HINT)
    over = fields.label_name(field, options.get("over", "node"), _TERM_HINT)
    weight = _parse_whole(f"{field} weight", options["weight"], 1, field) if "weight" in options else None
    return AffinityTerm(parse_constraint(field, term, _TERM_HINT), over, weight)


def _parse_spread(field: str, text: str) -> SpreadTerm:
    term, options = _split_options(field, text, ("skew", "weight"), _SPREAD_HINT)
    over = fields.label_name(field, term, _SPREAD_HINT)
    skew = _parse_whole(f"{field} skew", options.get("skew", "1"), 1, field, SKEW_MAX)
    weight = _parse_whole(f"{field} weight", options["weight"], 1, field) if "weight" in options else None
    return SpreadTerm(over, skew, weight)


def _parse_toleration(field: str, text: str) -> str:
    if text.strip() == "*":
        return "*"
    key, sign, value = text.strip().partition("=")
    fields.label_name(field, key, _TOLERATE_HINT)
    if sign and not 0 < len(value) <= LABEL_VALUE_MAX:
        raise BadField(field, f"'{printable(text)}' has no value, or too long a one", _TOLERATE_HINT)
    return f"{key}{sign}{value}"


def _split_options(field: str, text: str, known: tuple[str, ...], hint: str) -> tuple[str, dict[str, str]]:
    """`app == web over rack weight 5` -> `app == web`, and its options by name."""
    words = text.split()
    options: dict[str, str] = {}
    while len(words) >= 2 and words[-2] in known:
        value, name = words.pop(), words.pop()
        if name in options:
            raise BadField(field, f"'{printable(text)}' has {name} twice", hint)
        options[name] = value
    if words and words[-1] in known:
        raise BadField(field, f"'{printable(text)}' has no value after {words[-1]}", hint)
    return " ".join(words), options


def _parse_whole(what: str, text: str, low: int, field: str, high: int = WEIGHT_MAX) -> int:
    try:
        return parse_count(what, text, low, high)
    except BadField as problem:
        raise BadField(field, problem.detail, problem.hint) from None


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def parse_dependencies(field: str, value: object) -> tuple[Dependency, ...]:
    """One dependency, or a list of them; the jobs are as the user wrote them, by id or by name."""
    given = [value] if isinstance(value, str | dict) else value
    if not isinstance(given, list):
        raise BadField(field, "is not a list of jobs", _AFTER_HINT)
    if len(given) > AFTER_MAX:
        raise BadField(field, f"names {len(given)} jobs", f"write at most {AFTER_MAX}")
    return tuple(_parse_dependency(field, entry) for entry in given)


def _parse_dependency(field: str, value: object) -> Dependency:
    if isinstance(value, str):
        ref, sign, condition = fields.text(field, value, _JOB_REF_MAX).partition(":")
        table: dict[str, object] = {"job": ref, **({"on": condition} if sign else {})}
    else:
        table = dict(fields.known_fields(value, ("job", "on"))) if isinstance(value, dict) else {}
    job_ref: object = table.get("job")
    if isinstance(job_ref, int) and not isinstance(job_ref, bool):
        job_ref = str(job_ref)
    if not isinstance(job_ref, str) or not job_ref:
        raise BadField(field, "names no job", _AFTER_HINT)
    on = table.get("on", DependencyCondition.SUCCESS)
    if on not in list(DependencyCondition):
        raise BadField(
            field, f"'{fields.printable(str(on))}' is not a condition", "write success, failure or any"
        )
    return Dependency(JobId(fields.text(field, job_ref, _JOB_REF_MAX)), DependencyCondition(str(on)))
