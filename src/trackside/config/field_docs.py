"""The docstring of a config with its fields: `help(EMAConfig)` shows the default of each and the sentence below it.

Python drops a string that stands below a field, so the sentences are read from the source. That happens only when
somebody asks for the docstring. Defining a config costs no more than a note of where its class statement is.
"""

import ast
import dataclasses
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

_INDENT = " " * 4
_WIDTH = 100  # pydoc indents further


class DocWithFields:
    """Takes the place of a class's `__doc__`: the docstring as it was written, then the fields.

    Args:
        written: The docstring in the class statement.
        file: Where the class statement is.
        line: A line of it.
    """

    def __init__(self, written: str | None, file: str, line: int):
        self.written = written
        self.file = file
        self.line = line

    def __get__(self, instance: Any, cls: type) -> str | None:
        """The docstring of `cls`, which is the class or one that derives from it."""
        own_fields = "__dataclass_fields__" in vars(cls)
        if own_fields and "__match_args__" not in vars(cls):
            # `dataclass` is still at work, and asks because it would replace an empty docstring. After
            # `dataclass(match_args=False)` it looks the same, and the docstring stays as it was written.
            return self.written or cls.__name__
        if not dataclasses.is_dataclass(cls) or (self.written is None and not own_fields):
            return self.written  # where that is None, `inspect.getdoc` shows the docstring of a base
        # Without the empty lines, `inspect.cleandoc` would take the indentation of the list away.
        return f"{inspect.cleandoc(self.written or '')}\n\n{_field_list(cls)}"


def add_field_docs(cls: type) -> None:
    """Let the docstring of a class list its fields.

    Args:
        cls: A new class, before `dataclass` has seen it.
    """
    doc = vars(cls).get("__doc__")
    if not isinstance(doc, DocWithFields):  # it is one if `dataclass(slots=True)` builds the class a second time
        doc = DocWithFields(doc, *_class_statement(cls))
    # `type.__doc__` is Python's own descriptor. It asks the `__get__` of what it finds, so pydoc, IPython and
    # `inspect.getdoc` all get the text.
    cls.__doc__ = doc  # pyright: ignore[reportAttributeAccessIssue]


def field_sentences(cls: type) -> dict[str, str]:
    """The sentence below each field, in the source of a config and of its bases.

    Args:
        cls: A config class.

    Returns:
        The sentences by field; those of a subclass replace those of its bases. Fields whose source cannot be read are
        missing.
    """
    return {name: sentence for name, (_, sentence) in _declarations(cls).items() if sentence}


def _class_statement(cls: type) -> tuple[str, int]:
    """File and line of the class statement that is being executed. `inspect` does not find those of notebooks."""
    frame = sys._getframe(1)
    while frame.f_back and (
        frame.f_globals.get("__name__") != cls.__module__ or frame.f_code.co_name == "__init_subclass__"
    ):
        frame = frame.f_back  # past this package, metaclasses and hooks of subclasses
    return frame.f_code.co_filename, frame.f_lineno


def _field_list(cls: type) -> str:
    declarations = _declarations(cls)
    lines = ["Fields:"]
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):  # as in the signature
        declaration, sentence = declarations.get(field.name, (None, ""))
        lines.append(f"{_INDENT}{field.name}: {_type(field, declaration)}{_default(field, declaration)}")
        lines += textwrap.wrap(sentence, _WIDTH, initial_indent=_INDENT * 2, subsequent_indent=_INDENT * 2)
    return "\n".join(lines)


def _declarations(cls: type) -> dict[str, tuple[ast.AnnAssign, str]]:
    """How each field is declared, and the sentence below it: below that of a base if a subclass has none."""
    found: dict[str, tuple[ast.AnnAssign, str]] = {}
    for parent in reversed(cls.__mro__):
        body = _class_body(parent)
        for statement, following in zip(body, [*body[1:], ast.Pass()], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                found[name] = (statement, _text(following) or found.get(name, (None, ""))[1])
    return found


def _class_body(cls: type) -> list[ast.stmt]:
    """The statements of a class; none if its source cannot be read."""
    doc = vars(cls).get("__doc__")
    if not isinstance(doc, DocWithFields):
        return []
    module = sys.modules.get(cls.__module__)
    lines = linecache.getlines(doc.file, vars(module) if module else None)
    try:
        classes = _classes(ast.parse("".join(lines)), cls.__name__)
    except SyntaxError:  # the file is a page, say, whose examples somebody runs
        return []
    return next((body for first, last, body in classes if first <= doc.line <= last), [])


def _classes(tree: ast.AST, name: str) -> Iterator[tuple[int, int, list[ast.stmt]]]:
    """First line, last line and body of each class statement with this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield min(part.lineno for part in (node, *node.decorator_list)), node.end_lineno or node.lineno, node.body


def _text(statement: ast.stmt) -> str:
    """The text of a statement that is only a string; empty for any other."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(statement.value.value.split()) if isinstance(statement.value.value, str) else ""
    return ""


def _type(field: dataclasses.Field[Any], declaration: ast.AnnAssign | None) -> str:
    if declaration is not None:
        return ast.unparse(declaration.annotation)
    return field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)


def _default(field: dataclasses.Field[Any], declaration: ast.AnnAssign | None) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {_name(field.default) or repr(field.default)}"
    if field.default_factory is dataclasses.MISSING:
        return ""
    if field.default_factory in (list, dict, set, tuple):
        return f" = {field.default_factory()}"
    name = _name(field.default_factory)
    return f" = {_lambda_body(declaration) or '...'}" if name in ("", "<lambda>") else f" = {name}()"


def _name(value: Any) -> str:
    """The name of a class or function; empty for anything else."""
    return value.__name__ if isinstance(value, type) or inspect.isroutine(value) else ""


def _lambda_body(declaration: ast.AnnAssign | None) -> str:
    """What a factory returns that is written as a lambda."""
    if declaration is None or not isinstance(declaration.value, ast.Call):
        return ""
    values = (keyword.value for keyword in declaration.value.keywords if keyword.arg == "default_factory")
    return next((ast.unparse(value.body) for value in values if isinstance(value, ast.Lambda)), "")
