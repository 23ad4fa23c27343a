"""Writes the reference pages from docstrings and help texts: `python -m tools.reference`.

There is one page for each public class, one for the functions, one for the errors, one for asyncio,
one for Spark and one for the command line, in `docs/reference/`. A test fails if a page is not what
this writes. Without arguments the pages are written; `--check` only says which are out of date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import forebay  # noqa: E402  (only now it is found)
import forebay.aio  # noqa: E402
import forebay.spark  # noqa: E402
from forebay import errors  # noqa: E402
from forebay.cli.main import GROUPS, VERBS  # noqa: E402
from forebay.cli.main import main as program  # noqa: E402
from forebay.kernels import MODULES as COMPILED  # noqa: E402

PAGES = ROOT / "docs" / "reference"
HEAD = "<!-- Written by `python -m tools.reference`. Change the docstring, not this page. -->\n\n"
WIDTH = 90
# What a queue is asked by the language, and how a program writes it.
SPOKEN = {"__len__": "len(it)", "__iter__": "for each in it", "__aiter__": "async for each in it"}
STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
# Parameters for the tests of this repository.
INTERNAL = {"filesystem", "clock", "_open"}
QUEUES = ("Log", "Fifo", "DeadlineQueue", "BeatsQueue")
# Sections of the index; a class that is in none of them is among the last.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Queues": (*QUEUES, "Consumer", "EventBatch", "Root", "Definition"),
    "What they hold": ("Record", "Entry", "DeadlineItem", "Event"),
    "Readers": ("LogReader", "FifoReader", "DeadlineReader", "BeatsReader"),
    "Reports": (),
}


def main() -> int:
    """Writes the pages, or says which would change."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    stale = outdated()
    for path in stale:
        print(path.relative_to(ROOT))
    if options.check:
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True)
    made = pages()
    for path in stale:
        if path.name in made:
            path.write_text(made[path.name], encoding="utf-8")
        else:
            path.unlink()
    return 0


def outdated() -> list[Path]:
    """Lists the pages that are missing, too many, or not as they would be written now."""
    made = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    names = sorted(made.keys() | present.keys())
    return [PAGES / name for name in names if made.get(name) != present.get(name)]


def pages() -> dict[str, str]:
    """Returns the name and the text of every page."""
    classes = public_classes()
    made = {f"{each.__name__}.md": class_page(each, "forebay") for each in classes}
    made["functions.md"] = functions_page()
    made["errors.md"] = errors_page()
    made["aio.md"] = module_page(forebay.aio, "forebay.aio", *QUEUES, "Consumer", "EventBatch")
    made["spark.md"] = module_page(forebay.spark, "forebay.spark", *sorted(forebay.spark.__all__))
    made["cli.md"] = commands_page()
    made["README.md"] = index_page(classes)
    return {name: HEAD + text for name, text in made.items()}


def public_classes() -> list[type]:
    """Lists the public classes that are not errors."""
    found = [getattr(forebay, name) for name in sorted(forebay.__all__)]
    return [each for each in found if inspect.isclass(each) and not issubclass(each, Exception)]


def index_page(classes: list[type]) -> str:
    """Lists all pages, each with one line."""
    lines = ["# Reference", "", "Everything that is public. For explanations see [docs/](..).", ""]
    listed = {name for names in SECTIONS.values() for name in names}
    by_name = {each.__name__: each for each in classes}
    for title, names in SECTIONS.items():
        chosen = names or sorted(by_name.keys() - listed)
        lines += [f"**{title}**", ""]
        lines += [f"- [{name}]({name}.md): {first_line(by_name[name])}" for name in chosen]
        lines.append("")
    lines += [
        "**The rest**",
        "",
        "- [functions](functions.md): open, read, check, recover and more, for queues of all kinds",
        "- [errors](errors.md): what is raised, and what it means",
        "- [forebay.aio](aio.md): the same queues on asyncio",
        "- [forebay.spark](spark.md): sessions, and Forebay on a cluster",
        "- [the command line](cli.md): every verb with its options",
        "",
    ]
    return "\n".join(lines)


def first_line(each: type) -> str:
    """Returns the first sentence of a docstring, without its full stop."""
    paragraph = (inspect.getdoc(each) or "").partition("\n\n")[0].replace("\n", " ")
    return paragraph.partition(". ")[0].rstrip(".:")


def class_page(each: type, module: str) -> str:
    """Describes one class: how it is made, then its members in the order of the source."""
    title = f"{module}.{each.__name__}"
    return f"# {title}\n\n" + class_text(each, f"{module}.{each.__name__}", "##")


def class_text(each: type, title: str, level: str) -> str:
    """Returns the text on a class below its heading."""
    text = code(f"class {title}", constructor_of(each)) + documented(each)
    members = list(members_of(each))
    fields = [f"- `{name}{member}`" for name, member in members if isinstance(member, str)]
    # The constructor of a dataclass shows them.
    if fields and not dataclasses.is_dataclass(each):
        text += "\n" + "\n".join(fields) + "\n"
    for name, member in members:
        text += member_text(name, member, level)
    return text


def constructor_of(each: type) -> str | None:
    """Returns the parameters of a class that users make; None for what only queues make."""
    if each.__module__ in COMPILED or not inspect.isclass(each):
        return None
    own = each.__dict__.get("__init__") or getattr(each, "__init__", None)
    if own is object.__init__ or own is None:
        return None
    return parameters(own)


def members_of(each: type) -> Iterator[tuple[str, Any]]:
    """Yields the public members of a class and of its bases; a field as its type."""
    if each.__module__ in COMPILED:
        yield from stubbed_members(each)
        return
    seen = set()
    for owner in each.__mro__:
        if not owner.__module__.startswith("forebay"):
            continue
        annotations = inspect.get_annotations(owner)
        for name in [*annotations, *owner.__dict__]:
            public = not name.startswith("_") or name in SPOKEN
            if public and name not in seen:
                seen.add(name)
                annotation = annotations.get(name)
                member = owner.__dict__.get(name)
                is_field = annotation is not None and not callable(member)
                yield name, f": {annotation}" if is_field else member


def stubbed_members(each: type) -> Iterator[tuple[str, Any]]:
    """Yields the members of a compiled class as the types of its stub."""
    stub = ROOT / "src" / Path(*each.__module__.split(".")).with_suffix(".pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    (found,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == each.__name__
    ]
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, f": {ast.unparse(node.annotation)}"
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            returned = ast.unparse(node.returns) if node.returns else "None"
            if node.decorator_list:
                yield node.name, f": {returned}"
            else:
                yield node.name, f"({ast.unparse(node.args)}) -> {returned}"


def member_text(name: str, member: Any, level: str) -> str:
    """Describes a method or a property; nothing for a field."""
    if isinstance(member, property):
        getter = member.fget
        assert getter is not None
        kind = getter.__annotations__.get("return", "")
        return f"\n{level} {name}\n\n" + code(f"{name}: {kind}", None) + documented(member)
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if not callable(member):
        return ""
    shown = SPOKEN.get(name, name)
    call = code(name, parameters(member)) if name not in SPOKEN else ""
    return f"\n{level} {shown}\n\n" + call + documented(member)


def functions_page() -> str:
    """Describes the functions and the values that are no class."""
    text = "# Functions\n\nAll of them are in `forebay`.\n"
    for name in sorted(forebay.__all__):
        value = getattr(forebay, name)
        if inspect.isfunction(value):
            text += f"\n## {name}\n\n" + code(f"forebay.{name}", parameters(value))
            text += documented(value)
    return text + (
        "\n## compiled\n\n`forebay.compiled` is True if the hot loops are compiled; "
        "`forebay doctor` says why not.\n"
    )


def errors_page() -> str:
    """Describes the errors in the order of their module."""
    tree = inspect.getdoc(errors) or ""
    text = f"# Errors\n\n```text\n{tree}\n```\n"
    for name, each in vars(errors).items():
        if inspect.isclass(each) and each.__module__ == errors.__name__ and name[0] != "_":
            bases = ", ".join(base.__name__ for base in each.__bases__)
            text += f"\n## {name}\n\n{inspect.getdoc(each)} Derived from `{bases}`.\n"
    return text


def module_page(module: ModuleType, title: str, *names: str) -> str:
    """Describes a module: its docstring, then some of its classes and functions."""
    text = f"# {title}\n\n{inspect.getdoc(module)}\n"
    for name in names:
        value = getattr(module, name)
        text += f"\n## {title}.{name}\n\n"
        if inspect.isclass(value):
            text += class_text(value, f"{title}.{name}", "###")
        else:
            text += code(f"{title}.{name}", parameters(value)) + documented(value)
    return text


def commands_page() -> str:
    """Shows the help of every verb."""
    text = "# The command line\n\nExplained in [../cli.md](../cli.md). " + "`forebay --help`:\n\n"
    text += help_of(program, ["forebay"])
    for verbs in GROUPS.values():
        for verb in verbs:
            text += help_of(command_of(verb), ["forebay", verb], title=f"## {verb}\n\n")
    return text


def command_of(verb: str) -> click.Command:
    """Returns the command of a verb."""
    assert verb in VERBS
    found = program.get_command(click.Context(program), verb)
    assert found is not None
    return found


def help_of(command: click.Command, path: list[str], title: str = "") -> str:
    """Shows the help of a command and of those below it."""
    context = None
    for name in path[:-1]:
        context = click.Context(click.Command(name), info_name=name, parent=context)
    context = click.Context(
        command,
        info_name=path[-1],
        parent=context,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        # A command keeps the option that it was first asked for, here or in another test.
        help_option_names=program.context_settings["help_option_names"],
    )
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    text = f"{title}```text\n" + "\n".join(lines).strip() + "\n```\n\n"
    if isinstance(command, click.Group) and command is not program:
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            text += help_of(inner, [*path, name])
    return text


def parameters(function: Callable[..., Any]) -> str:
    """Returns the parameters of a function and what it returns, on as many lines as they need."""
    signature = inspect.signature(function)
    shown, keyword_only = [], False
    for name, each in signature.parameters.items():
        if name == "self" or name in INTERNAL:
            continue
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        star = STARS.get(each.kind.name, "")
        keyword_only |= bool(star)
        text = star + name
        if each.annotation is not each.empty:
            text += f": {plain(each.annotation)}"
        if each.default is not each.empty:
            text += f" = {each.default!r}"
        shown.append(text)
    returned = plain(signature.return_annotation)
    arrow = f" -> {returned}" if returned not in ("None", "") else ""
    short = ", ".join(shown)
    if len(short) + len(arrow) <= WIDTH - 24:
        return f"({short}){arrow}"
    return "(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"


def plain(annotation: object) -> str:
    """Returns an annotation as it is written in the source."""
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def code(name: str, call: str | None) -> str:
    """Shows how something is written in a program."""
    return f"```text\n{name}{call or ''}\n```\n\n"


def documented(each: Any) -> str:
    """Returns a docstring as Markdown."""
    text = inspect.getdoc(each)
    return f"{text}\n" if text else ""


if __name__ == "__main__":
    sys.exit(main())
