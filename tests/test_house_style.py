"""The rules of style that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.sources import Source, python_files

# Of `./test --check` and the longer tiers.
pytestmark = pytest.mark.slow

FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100
NAME_WORDS_MIN = 3

Breach = tuple[int, str]
Rule = Callable[[Source], Iterator[Breach]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

# A row of signs alone, or a row of signs before a heading. The line under the head of a table has
# several rows of dashes and is neither.
BANNER = re.compile(r"#+\s*(?:([-=*~_#])\1{3,}\s*$|([-=*~_#])\2{2,}\s+\w)")
ISSUE_NUMBER = re.compile(r"(?:#|\bGH-|\b[Ii]ssue )\d+")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
CHECKING_CALL = re.compile(r"(?:assert|check|run_state_machine)_\w+$|(?:raises|warns|fail)$")
# What begins with one underscore and is public all the same.
PUBLIC = ("_replace", "_asdict", "_fields", "_exit")
INSIDE = "tests/support/inside.py"
PLANTED = "planted bugs change what only the module itself calls"
# What tests reach for beside `INSIDE`: the files, the names, `*` for all, and the reason.
REACHES = {
    "tests/archive/test_planted_bugs.py": ("*", PLANTED),
    "tests/crash/beats_bugs.py": ("*", PLANTED),
    "tests/crash/deadline_bugs.py": ("*", PLANTED),
    "tests/crash/fifo_bugs.py": ("*", PLANTED),
    "tests/crash/log_bugs.py": ("*", PLANTED),
    "tests/crash/test_kills.py": ("_front", "a take of what came back is not the next entry"),
    "tests/forward/test_logging.py": ("_log", "holds the lock of the log, as a stalled disk does"),
    "tests/forward/test_planted.py": ("*", PLANTED),
    "tests/pipelines/killed_driver.py": ("_finish", "dies in the middle of it"),
    "tests/queues/test_beats_room.py": ("_access", "its text may not show the key"),
    "tests/queues/test_deadline_verbs.py": ("_touch", "sees that a lease is extended"),
    "tests/queues/test_deadline_writing.py": ("_runs", "fills a run without a queue"),
    "tests/queues/test_fifo_dead.py": ("_directory", "reads the head beside its owner"),
    "tests/queues/test_limits.py": ("_segments", "makes a log larger than its limit"),
    "tests/spark/once/failing.py": ("_source_options", "makes a reader that fails"),
    "tests/spark/test_event_stream_random.py": ("*", PLANTED),
    "tests/spark/test_fifos.py": ("_wanted", "the schema, without a Spark that asks for it"),
    "tests/spark/test_parts.py": ("_work _syncer", "waits for the syncs of another thread"),
    "tests/spark/test_planted_sink.py": ("*", PLANTED),
    "tests/storage/test_commit.py": ("_sync _company", "tells the waits of one that leads"),
    "tests/support/leftovers.py": ("_current_frames", "of Python: where a thread is"),
}
PICKLES = ("pickle", "cloudpickle", "dill", "shelve", "marshal")


def has_short_functions(source: Source) -> Iterator[Breach]:
    for function in functions(source):
        # Parameters and what is said of them are free.
        first, *rest = function.body
        begin = rest[0] if rest and ast.get_docstring(function) else first
        lines = (function.end_lineno or function.lineno) - begin.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name} has {lines} lines"


def has_short_lines(source: Source) -> Iterator[Breach]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns; at most {COLUMNS_MAX}"


def has_a_docstring(source: Source) -> Iterator[Breach]:
    if is_package(source) and not ast.get_docstring(source.tree):
        yield 1, "no module docstring"


def prints_only_in_the_cli(source: Source) -> Iterator[Breach]:
    if is_package(source) and not source.path.startswith("src/forebay/cli/"):
        for call in calls(source.nodes):
            if isinstance(call.func, ast.Name) and call.func.id == "print":
                yield call.lineno, "print"


def names_what_it_catches(source: Source) -> Iterator[Breach]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"


def leaves_nothing_unfinished(source: Source) -> Iterator[Breach]:
    for line, comment in source.comments:
        if UNFINISHED.search(comment):
            yield line, comment


def knows_no_pickle(source: Source) -> Iterator[Breach]:
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in module or [alias.name for alias in node.names]:
                if name.partition(".")[0] in PICKLES:
                    yield node.lineno, f"imports {name}"


def draws_no_banners(source: Source) -> Iterator[Breach]:
    for line, comment in source.comments:
        if BANNER.match(comment):
            yield line, comment


def gives_reasons_and_no_issue_numbers(source: Source) -> Iterator[Breach]:
    for line, comment in source.comments:
        if ISSUE_NUMBER.search(comment):
            yield line, comment


def asserts_in_every_test(source: Source) -> Iterator[Breach]:
    for function in functions_of_tests(source):
        nodes = list(ast.walk(function))
        asserts = any(isinstance(node, ast.Assert) for node in nodes)
        if not asserts and not any(CHECKING_CALL.match(name_of(c)) for c in calls(nodes)):
            yield function.lineno, f"{function.name} asserts nothing"


def names_tests_with_sentences(source: Source) -> Iterator[Breach]:
    for function in functions_of_tests(source):
        words = [word for word in function.name.split("_")[1:] if word]
        if len(words) < NAME_WORDS_MIN:
            yield function.lineno, f"{function.name} is no sentence"


def reaches_inside_only_where_it_is_told(source: Source) -> Iterator[Breach]:
    names = REACHES.get(source.path, ("", ""))[0].split()
    if not source.path.startswith("tests/") or source.path == INSIDE or names == ["*"]:
        return
    allowed = {*PUBLIC, *names_of(source), *names}
    for node in attributes(source):
        if is_private(node.attr) and node.attr not in allowed and not is_own(node):
            yield node.lineno, f"{ast.unparse(node)}: use a verb, or a function of {INSIDE}"


def attributes(source: Source) -> Iterator[ast.Attribute]:
    for node in source.nodes:
        if isinstance(node, ast.Attribute):
            yield node


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_of(source: Source) -> Iterator[str]:
    """Yields the names that a file itself defines, and those of its objects."""
    for node in source.nodes:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and is_own(node):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_package(source: Source) -> bool:
    return source.path.startswith("src/")


def functions(source: Source) -> Iterator[Function]:
    for node in source.nodes:
        if isinstance(node, Function):
            yield node


def functions_of_tests(source: Source) -> Iterator[Function]:
    if source.path.rpartition("/")[2].startswith("test_"):
        yield from (f for f in functions(source) if f.name.startswith("test_"))


def calls(nodes: list[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, ast.Call):
            yield node


def name_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def signs(sign: str) -> str:
    return sign * 12


# Each rule with a sample that breaks it. The samples are put together from parts where they would
# otherwise break the rule in this file.
SAMPLES: dict[Rule, str] = {
    has_short_functions: "def long():\n" + "    pass\n" * (FUNCTION_LINES_MAX + 1),
    has_short_lines: "x = '" + "x" * COLUMNS_MAX + "'\n",
    has_a_docstring: "x = 1\n",
    prints_only_in_the_cli: "print('x')\n",
    names_what_it_catches: "try:\n    pass\nexcept:\n    pass\n",
    leaves_nothing_unfinished: "x = 1  # TODO: finish\n",
    knows_no_pickle: "from pickle import loads\n",
    draws_no_banners: f"# {signs('-')} parts {signs('-')}\n",
    gives_reasons_and_no_issue_numbers: "x = 1  # See #123.\n",
    asserts_in_every_test: "def test_nothing_is_checked_here():\n    call()\n",
    names_tests_with_sentences: "def test_push():\n    assert True\n",
    reaches_inside_only_where_it_is_told: "def drop(queue):\n    queue._closed = True\n",
}
TEST_RULES = (
    asserts_in_every_test,
    names_tests_with_sentences,
    reaches_inside_only_where_it_is_told,
)

each_rule = pytest.mark.parametrize("rule", SAMPLES, ids=lambda rule: rule.__name__)


def test_every_file_keeps_every_rule() -> None:
    # In one test: each worker that ran some of the rules would parse all files again.
    found = [
        f"{source.path}:{line}: {what} ({rule.__name__})"
        for source in python_files()
        for rule in SAMPLES
        for line, what in rule(source)
    ]

    assert not found, "\n".join(found)


@each_rule
def test_the_rule_finds_a_planted_breach(rule: Rule) -> None:
    path = "tests/test_planted.py" if rule in TEST_RULES else "src/forebay/planted.py"

    breaches = list(rule(Source(path, SAMPLES[rule])))

    assert len(breaches) == 1


@pytest.mark.parametrize("comment", [f"# {signs('=')}", f"{signs('#')}", f"# {signs('*')} Parts"])
def test_a_row_of_signs_is_a_banner(comment: str) -> None:
    assert len(list(draws_no_banners(Source("src/forebay/planted.py", comment)))) == 1


@pytest.mark.parametrize("comment", ["# a - b", "# field  bytes", "# -----  -----", "# x --check"])
def test_a_table_or_a_dash_is_no_banner(comment: str) -> None:
    assert list(draws_no_banners(Source("src/forebay/planted.py", comment))) == []


def test_every_reach_that_is_allowed_is_made() -> None:
    unused = []
    for source in python_files("tests"):
        names, _ = REACHES.get(source.path, ("", ""))
        made = {"*", *(node.attr for node in attributes(source))}
        unused += [f"{source.path}: {name}" for name in names.split() if name not in made]

    assert not unused


@pytest.mark.parametrize(
    "body", ["with pytest.raises(OSError):\n        call()", "assert_same(x, y)", "assert x"]
)
def test_a_test_may_assert_through_pytest_or_a_helper(body: str) -> None:
    text = f"def test_that_it_is_checked():\n    {body}\n"

    assert list(asserts_in_every_test(Source("tests/test_planted.py", text))) == []
