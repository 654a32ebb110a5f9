"""The classes of the client -> their twins for asyncio: python tools/async_client.py [DIRECTORY].

Every public method gets a twin of the same name, parameters and documentation, which waits in a thread.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CLIENT = Path(__file__).parents[1] / "src" / "rota" / "client"
PACKAGE = "rota.client"
MODULES = ("job", "crons", "clusters", "nodes", "access", "server_admin", "cluster")
OWN = "_sync"
NOT_SHOWN = ("transport",)
FROM_THREADS = ("apart", "each")
RUFF = Path(sys.executable).with_name("ruff")

Function = ast.FunctionDef


class Twin(NamedTuple):
    """A class of the client and where it is."""

    module: str
    tree: ast.ClassDef


def main() -> None:
    """Into the package, or into another directory."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else CLIENT / "aio"
    trees = {name: ast.parse((CLIENT / f"{name}.py").read_text()) for name in MODULES}
    twins = {one.name: Twin(name, one) for name, tree in trees.items() for one in _classes(tree)}
    for name, tree in trees.items():
        (target / f"{name}.py").write_text(_formatted(_module(name, tree, twins)))


def _module(name: str, tree: ast.Module, twins: dict[str, Twin]) -> str:
    text = "\n\n".join(_class(one, twins) for one in _classes(tree))
    about = f"`{PACKAGE}.{name}` for asyncio, under the same names. Made by `make client`, not by hand."
    return f'"""{about}"""\n\n{_imports(name, tree, text, twins)}\n\n{text}'


def _class(tree: ast.ClassDef, twins: dict[str, Twin]) -> str:
    parents = ", ".join(f"Async{ast.unparse(one)}" for one in tree.bases)
    lines = [f"class Async{tree.name}{f'({parents})' if parents else ''}:"]
    lines += [f'"""{ast.get_docstring(tree)}"""\n'] if ast.get_docstring(tree) else []
    lines.append(f"_sync: {tree.name}\n")
    attributes = [_attribute(part) for part in tree.body if isinstance(part, ast.AnnAssign)]
    methods = [_method(part, tree, twins) for part in tree.body if isinstance(part, Function)]
    lines += [*methods[:1], *attributes, *methods[1:]]
    return lines[0] + "\n" + "\n".join(_indented(line) for line in lines[1:] if line)


def _attribute(part: ast.AnnAssign) -> str:
    name = ast.unparse(part.target)
    if name in NOT_SHOWN or name.startswith("_"):
        return ""
    return f"@property\ndef {name}(self) -> {ast.unparse(part.annotation)}:\n    return self._sync.{name}\n"


def _method(function: Function, tree: ast.ClassDef, twins: dict[str, Twin]) -> str:
    match function.name:
        case "__init__":
            parts = "".join(
                f"    self.{name} = Async{kind}(sync.{name})\n" for name, kind in _parts(function, twins)
            )
            return f"def __init__(self, sync: {tree.name}) -> None:\n    self._sync = sync\n{parts}"
        case "__enter__":
            return "async def __aenter__(self) -> Self:\n    return self\n"
        case "__exit__":
            return "async def __aexit__(self, *_: object) -> None:\n    await self.close()\n"
        case "__repr__":
            return 'def __repr__(self) -> str:\n    return f"Async{self._sync!r}"\n'
        case _:
            return "" if function.name.startswith("_") else _public(function, twins)


def _public(function: Function, twins: dict[str, Twin]) -> str:
    if function.decorator_list:
        returns = ast.unparse(function.returns) if function.returns else "None"
        return f"@property\ndef {function.name}(self) -> {returns}:\n    return self._sync.{function.name}\n"
    return _waiting(function, twins)


def _waiting(function: Function, twins: dict[str, Twin]) -> str:
    returns = _returned(function)
    passed = ", ".join(_passed(function.args))
    call = f"lambda: self._sync.{function.name}({passed})" if passed else f"self._sync.{function.name}"
    said = ast.get_docstring(function, clean=False)
    about = f'    """{said}"""\n' if said else ""
    head = f"def {function.name}({ast.unparse(function.args)})"
    if returns.startswith("Iterator["):
        return f"{head} -> Async{returns}:\n{about}    return each({call})\n"
    if returns == "None":
        return f"async {head} -> None:\n{about}    await apart({call})\n"
    if returns in twins:
        return f"async {head} -> 'Async{returns}':\n{about}    return Async{returns}(await apart({call}))\n"
    return f"async {head} -> {returns}:\n{about}    return await apart({call})\n"


def _returned(function: Function) -> str:
    match function.returns:
        case ast.Constant(value=str(name)):
            return name
        case None:
            return "None"
        case annotation:
            return ast.unparse(annotation)


def _passed(parameters: ast.arguments) -> Iterator[str]:
    for one in (*parameters.posonlyargs, *parameters.args):
        if one.arg != "self":
            yield one.arg
    if parameters.vararg:
        yield f"*{parameters.vararg.arg}"
    for one in parameters.kwonlyargs:
        yield f"{one.arg}={one.arg}"
    if parameters.kwarg:
        yield f"**{parameters.kwarg.arg}"


def _parts(function: Function, twins: dict[str, Twin]) -> Iterator[tuple[str, str]]:
    """What else an object of the class holds that has a twin."""
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id=kind))):
                if kind in twins:
                    yield name, kind
            case _:
                pass


def _imports(name: str, tree: ast.Module, text: str, twins: dict[str, Twin]) -> str:
    homes = {"AsyncIterator": "collections.abc", "Self": "typing"}
    homes |= {f"Async{kind}": f"{PACKAGE}.aio.{twin.module}" for kind, twin in twins.items()}
    homes |= dict.fromkeys(FROM_THREADS, f"{PACKAGE}.aio.threads")
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            homes |= {one.name: statement.module or "" for one in statement.names}
        elif isinstance(statement, ast.ClassDef):
            homes[statement.name] = f"{PACKAGE}.{name}"
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - {OWN}
    made = {one.name for one in ast.parse(text).body if isinstance(one, ast.ClassDef)}
    known = [one for one in sorted(used - made) if one in homes]
    missing = used - made - set(homes) - set(dir(builtins)) - _parameters(text)
    if missing:
        sys.exit(f"error: nobody knows where {', '.join(sorted(missing))} of {name}.py come from")
    return "\n".join(f"from {homes[one]} import {one}" for one in known)


def _parameters(text: str) -> set[str]:
    return {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arg)}


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    """All but mere data."""
    return [one for one in tree.body if isinstance(one, ast.ClassDef) and not one.decorator_list]


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line.strip() else "\n" for line in text.split("\n"))


def _formatted(text: str) -> str:
    for step in (["check", "--select", "I", "--fix"], ["format"]):
        command = [str(RUFF), *step, "--quiet", "--stdin-filename", str(CLIENT / "aio" / "made.py"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    main()
