"""The OpenAPI document -> a self-contained HTML page."""

from collections.abc import Iterator
from html import escape

from rota.apiserver.openapi.fields import Schema

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1b1b; background: #fdfdfd }
h2 { margin-top: 2.5rem } h2::first-letter { text-transform: uppercase }
h3 { margin: 1.6rem 0 .2rem; font-size: 1rem }
code, h3 { font-family: ui-monospace, monospace } table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid #ddd; padding: .2rem .8rem .2rem 0; vertical-align: top }
td:first-child { white-space: nowrap; width: 1% }
.kind { color: #666; font-size: .85rem } a { color: #0b57a4 }
@media (prefers-color-scheme: dark) {
  body { color: #e4e4e4; background: #161616 } td { border-color: #333 }
  .kind { color: #9a9a9a } a { color: #8ab8f0 } }
"""


def render_html(document: Schema) -> str:
    return "\n".join(_lines(document))


def _lines(document: Schema) -> Iterator[str]:
    info = document["info"]
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>"
    yield '<meta name=viewport content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style>"
    yield f"<h1>{escape(info['title'])} API <span class=kind>{escape(info['version'])}</span></h1>"
    yield f"<p>{_prose(info['description'])}</p>"
    groups: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    yield "<p>" + " · ".join(f"<a href='#{_anchor(group)}'>{escape(group)}</a>" for group in groups)
    yield "· <a href='#models'>models</a></p>"
    for group, found in groups.items():
        yield f"<h2 id='{_anchor(group)}'>{escape(group)}</h2>"
        for method, path, operation in found:
            yield from _operation(method, path, operation)
    yield "<h2 id=models>Models</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield from _model(name, schema)


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<h3 id='{escape(operation['operationId'])}'>{method} {escape(path)}</h3>"
    summary = operation["summary"]
    yield f"<p>{_prose(summary[:1].upper() + summary[1:])}. {_prose(operation.get('description', ''))}</p>"
    rows = [
        (parameter["name"], f"{parameter['in']}, {_type_html(parameter['schema'])}", parameter["description"])
        for parameter in operation["parameters"]
    ]
    if "requestBody" in operation:
        rows.append(("", "body", _type_html(_content(operation["requestBody"]))))
    for status, response in operation["responses"].items():
        if "content" in response:
            rows.append((status, "response", _type_html(_content(response))))
    yield from _table(rows)


def _model(name: str, schema: Schema) -> Iterator[str]:
    yield f"<h3 id='model-{escape(name)}'>{escape(name)}</h3><p>{_prose(schema.get('description', ''))}</p>"
    properties = schema.get("properties", {})
    yield from _table(
        [
            (field, _type_html(described), described.get("description", ""))
            for field, described in properties.items()
        ]
    )


def _table(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    if rows:
        yield "<table>"
        for name, kind, text in rows:
            prose = text if text.startswith("<a ") else _prose(text)
            shown = kind if "<a " in kind else escape(kind)
            yield f"<tr><td><code>{escape(name)}</code><td>{prose} <span class=kind>{shown}</span>"
        yield "</table>"


def _anchor(group: str) -> str:
    return escape(group.replace(" ", "-"))


def _content(described: Schema) -> Schema:
    found: Schema = next(iter(described["content"].values()))["schema"]
    return found


def _type_html(schema: Schema) -> str:
    """A short description of a type, with links to models."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#model-{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_type_html(option) for option in schema["anyOf"])
    if "enum" in schema:
        return escape(", ".join(str(value) for value in schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type_html(schema.get('items') or {})}"
    return escape(str(schema.get("type", "anything")))


def _prose(text: str) -> str:
    """The text as HTML, with `code` as code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
