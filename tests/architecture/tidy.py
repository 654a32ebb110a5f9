"""A module's text -> findings of untidiness, one sentence each."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.architecture.table import (
    BANNED_SUFFIXES,
    CLOCK_METHODS,
    EDGES,
    FILE_LINES,
    FUNCTION_LINES,
    PARAMETERS,
    THIRD_PARTY,
    is_pure,
    within,
)


@dataclass(frozen=True)
class StyleViolation:
    module: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.problem}"


@dataclass(frozen=True)
class Module:
    name: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # all of them, walked once for all rules


Problems = Iterator[tuple[int, str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(name: str, text: str) -> list[StyleViolation]:
    tree = ast.parse(text)
    module = Module(name, text, tree, tuple(ast.walk(tree)))
    found = (StyleViolation(name, line, problem) for rule in RULES for line, problem in rule(module))
    return sorted(found, key=lambda finding: finding.line)


def says_what_it_is(module: Module) -> Problems:
    if not ast.get_docstring(module.tree):
        yield 1, "has no docstring that says what it is"


def file_is_short(module: Module) -> Problems:
    if (lines := len(module.text.splitlines())) > FILE_LINES:
        yield 1, f"has {lines} lines, at most {FILE_LINES} are accepted"


def functions_are_short(module: Module) -> Problems:
    for function in functions(module):
        if (lines := body_lines(function)) > FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines, at most {FUNCTION_LINES} are accepted"


def parameters_are_few(module: Module) -> Problems:
    for function in functions(module):
        if (count := parameter_count(function)) > PARAMETERS:
            problem = f"{function.name} takes {count} parameters, at most {PARAMETERS} are accepted"
            yield function.lineno, problem


def classes_are_named_for_what_they_are(module: Module) -> Problems:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_SUFFIXES):
            yield node.lineno, f"the name {node.name} does not say what the class is"


def imports_are_plain(module: Module) -> Problems:
    for node in module.nodes:
        match node:
            case ast.ImportFrom(level=level) if level:
                yield node.lineno, "relative import"
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                yield node.lineno, "TYPE_CHECKING hides a cycle"
            case _:
                pass


def imports_stand_at_the_top(module: Module) -> Problems:
    if within(module.name, ("rota.cli",)):  # the command line imports late, for its start-up time
        return
    for function in functions(module):
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node.lineno, f"import inside {function.name}"


def third_parties_are_where_the_table_says(module: Module) -> Problems:
    for line, imported in imports(module):
        package = imported.partition(".")[0]
        if package == "rota" or package in sys.stdlib_module_names:
            continue
        if not within(module.name, THIRD_PARTY.get(package, ())):
            yield line, f"{package} may not be imported here"


def nothing_is_raised_from_a_group(module: Module) -> Problems:
    """An error raised inside `except*` is a group of one in some releases of Python, bare in others."""
    for node in ast.walk(module.tree):
        for clause in node.handlers if isinstance(node, ast.TryStar) else ():
            for inner in ast.walk(clause):
                if isinstance(inner, ast.Raise) and inner.exc is not None:
                    yield inner.lineno, "raised inside except*: raise it below"


def nothing_dangerous(module: Module) -> Problems:
    for line, imported in imports(module):
        if imported.startswith(("pickle", "marshal", "shelve", "yaml.load", "yaml.unsafe_load")):
            yield line, f"{imported} can run what it reads"
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield node.lineno, f"{name} runs what it is given"
            case ast.Attribute(value=ast.Name(id="yaml"), attr="load" | "unsafe_load" | "full_load" as name):
                yield node.lineno, f"yaml.{name} can run what it reads"
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                yield node.value.lineno, "shell=True: commands are argv lists"
            case _:
                pass


def errors_are_caught_by_kind(module: Module) -> Problems:
    if module.name in EDGES:
        return
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and catches_all(node) and not raises_again(node):
            yield node.lineno, "catches every error; name the kind that is meant"


def deciding_code_has_an_order(module: Module) -> Problems:
    if not is_pure(module.name, ast.get_docstring(module.tree)):
        return
    for node in module.nodes:
        if isinstance(node, ast.For | ast.comprehension) and is_unordered(node.iter):
            yield node.iter.lineno, "goes through a set, whose order is not fixed; sort it"


def deciding_code_reads_no_clock(module: Module) -> Problems:
    if not is_pure(module.name, ast.get_docstring(module.tree)):
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in CLOCK_METHODS:
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("datetime", "date"):
                yield node.lineno, f"calls {owner}.{node.attr}: time is an argument"


def text_is_finished(module: Module) -> Problems:
    for number, line in enumerate(module.text.splitlines(), start=1):
        if mark := UNFINISHED.search(line):
            yield number, f"{mark.group()} is left to do"
        if path := MACHINE_PATH.search(line):
            yield number, f"{path.group()} is a path of one machine"


RULES: tuple[Callable[[Module], Problems], ...] = (
    says_what_it_is,
    file_is_short,
    functions_are_short,
    parameters_are_few,
    classes_are_named_for_what_they_are,
    imports_are_plain,
    imports_stand_at_the_top,
    third_parties_are_where_the_table_says,
    nothing_is_raised_from_a_group,
    nothing_dangerous,
    errors_are_caught_by_kind,
    deciding_code_has_an_order,
    deciding_code_reads_no_clock,
    text_is_finished,
)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}\])>*])/(home|root|Users|work|mnt)/")
PASS_THE_ORDER_ON = ("enumerate", "filter", "iter", "list", "map", "reversed", "tuple", "zip")


def functions(module: Module) -> Iterator[Function]:
    return (node for node in module.nodes if isinstance(node, Function))


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from a import b` counts as a.b."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def body_lines(function: Function) -> int:
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def parameter_count(function: Function) -> int:
    given = function.args
    named = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    stars = (given.vararg is not None) + (given.kwarg is not None)
    return len([name for name in named if name not in ("self", "cls")]) + stars


def catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def is_unordered(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in PASS_THE_ORDER_ON:
            return any(is_unordered(argument) for argument in arguments)
        case ast.BinOp(left=left, right=right):
            return is_unordered(left) or is_unordered(right)
        case _:
            return False
