"""The countable part of the house rules in docs/house-rules.md.

Exemptions stand here, each with its reason; an exemption nobody needs any more fails too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.source_tree import ROOT, SourceFile, python_files, text_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_NESTING = 4
MAX_ATTRIBUTES = 12

ALL_FILES = python_files()
PROGRAM_FILES = python_files(with_tests=False)

# What is exempt: "file" or "file:name" -> reason.
LONG_FILES: dict[str, str] = {
    "MiniCPMO45/model/audio_encoder.py": "an encoder, its cache, and the passes over both",
    "MiniCPMO45/engine/kv_cache.py": "a row of a pass is a place in the page table",
    "MiniCPMO45/token2wav/vocoder_state.py": "a chunk's inputs hold its streams' addresses",
    "core/protocols/realtime_responses.py": "which of two engines responds, and both side by side",
    "gateway_modules/queue/worker_pool.py": "a ticket from its draw to the slot it gives back",
    "gateway_modules/relay/relay.py": "a client's socket, from the queue to its last message",
    "recording/recorder.py": "a job from a session's call to the file, and the threads between",
    "minicpmo_live/events.py": "generated: a class for each message",
}
LONG_FUNCTIONS: dict[str, str] = {}
WIDE_CLASSES: dict[str, str] = {}
CATCH_ALL: dict[str, str] = {
    "core/serving/connection.py": "the edge of loop and engine: logged, and becomes an event",
    "MiniCPMO45/processing/tokenizer.py": "the compiled tokenizer raises plain Exception",
    "MiniCPMO45/kernels/plan_search.py": "a kernel that fails in any way is not used",
    "core/cascade/backend.py": "a thread's edge: logged, and the small model stays",
    "launcher/conductor.py": "one round's failure is logged, and the next may do better",
    "launcher/posts.py": "logged, and the process ends, so that another machine is tried",
    "webrtc/calls.py": "one call's failure is logged and ends that call, not others",
    "core/engine/passes.py": "becomes one conversation's outcome, or is raised inside its steps",
    "core/engine/engine.py": "the engine thread's edge: logged, and raised at the caller",
    "core/serving/runtime.py": "loading may fail in any way: logged, and told by /health",
    "core/serving/session_handler.py": "a view's edge: counted, and becomes the project's error",
    "benchmarks/launched.py": "kills what it has started, and raises again",
    "tests/fakes/awaits.py": "hands what was thrown in to the coroutine it drives",
    "tests/system/bystander.py": "keeps what went wrong in its thread for the test",
    "core/serving/session_server.py": "a damaged recording is logged, and keeps no session away",
    "core/serving/transcribers.py": "logged, and becomes a transcript's problem, not a turn's",
    "gateway_modules/relay/telemetry.py": "a timer's edge: logged, and the next sample comes",
    "gateway_modules/relay/relay.py": "the edge of a client's socket: logged, told, given back",
    "gateway_modules/queue/desk_client.py": "logged, and a new connection starts afresh",
    "gateway_modules/routes/http_edge.py": "the edge of HTTP: logged, and answered with 500",
    "recording/bucket.py": "the edge of the uploader: logged, the next round comes all the same",
    "recording/store.py": "the edge of the cleanup: logged, the next run comes",
    "tests/goldens/runner.py": "one broken comparer must not hide the others; it is reported",
    "tests/goldens/resizing.py": "raised again when the other order does not fit either",
}
REFLECTION: dict[str, str] = {}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
STATEMENT = (ast.stmt, ast.excepthandler, ast.match_case)
BLOCK = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
CONTAINER = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
CONTAINER_CALLS = frozenset(
    "list dict set bytearray defaultdict OrderedDict deque Counter WeakValueDictionary".split()
)
MUTATORS = frozenset(
    "add append appendleft clear discard extend insert pop popitem remove reverse setdefault sort "
    "update".split()
)

Finder = Callable[[SourceFile], Iterator[tuple[str, str]]]


def functions(source: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in source.nodes:
        if isinstance(node, FUNCTION):
            yield node


def called_name(node: ast.expr) -> str:
    """`f` of `f(...)` and of `m.f(...)`, empty for anything else."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id
        if isinstance(node.func, ast.Attribute):
            return node.func.attr
    return ""


def long_files(source: SourceFile) -> Iterator[tuple[str, str]]:
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield source.name, f"{lines} lines, at most {MAX_FILE_LINES}"


def long_functions(source: SourceFile) -> Iterator[tuple[str, str]]:
    for function in functions(source):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            key = f"{source.name}:{function.name}"
            yield key, f"{lines} lines, at most {MAX_FUNCTION_LINES}"


def depth_below(node: ast.AST, depth: int = 0) -> int:
    """Deepest nesting of blocks under `node`; an `elif` is no deeper than its `if`."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTION, ast.ClassDef)) or not isinstance(child, STATEMENT):
            continue  # functions are counted on their own; an expression contains no block
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deeper = isinstance(child, BLOCK) and not is_elif
        deepest = max(deepest, depth_below(child, depth + deeper))
    return deepest


def deep_functions(source: SourceFile) -> Iterator[tuple[str, str]]:
    for function in functions(source):
        depth = depth_below(function)
        if depth > MAX_NESTING:
            yield f"{source.name}:{function.name}", f"nested {depth} deep, at most {MAX_NESTING}"


def wide_classes(source: SourceFile) -> Iterator[tuple[str, str]]:
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            names = {
                target.attr
                for target in ast.walk(node)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            }
            if len(names) > MAX_ATTRIBUTES:
                key = f"{source.name}:{node.name}"
                yield key, f"sets {len(names)} attributes, at most {MAX_ATTRIBUTES}"


def is_changed(name: str, source: SourceFile) -> bool:
    """Whether a file changes the container that `name` stands for."""
    for node in source.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node.value, ast.Name) and node.value.id == name:
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == name and node.func.attr in MUTATORS:
                return True
    return False


def module_state(source: SourceFile) -> Iterator[tuple[str, str]]:
    """Containers at module level that are not plain constants, and every `global`."""
    for node in source.nodes:
        if isinstance(node, ast.Global):
            yield f"{source.name}:{','.join(node.names)}", "global statement"
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if not (isinstance(value, CONTAINER) or called_name(value) in CONTAINER_CALLS):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id != "__all__":
                is_constant = target.id.isupper() and not is_changed(target.id, source)
                if not is_constant:
                    yield f"{source.name}:{target.id}", "mutable state at module level"


def swallowed(source: SourceFile) -> Iterator[tuple[str, str]]:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            where = f"{source.name}:{node.lineno}"
            is_broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
            )
            is_empty = all(
                isinstance(line, ast.Pass | ast.Continue)
                or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
                for line in node.body
            )
            if node.type is None:
                yield where, "bare except"
            elif is_broad and is_empty:
                yield where, "swallows every error"


def catch_all(source: SourceFile) -> Iterator[tuple[str, str]]:
    """`except Exception` belongs to the edges of a process."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name):
            if node.type.id in {"Exception", "BaseException"}:
                yield source.name, f"line {node.lineno} catches everything"


def reflection(source: SourceFile) -> Iterator[tuple[str, str]]:
    """What may be absent is declared `| None`, not asked for by name."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"getattr", "hasattr", "setattr", "delattr"}:
                yield source.name, f"line {node.lineno} calls {node.func.id}"


def moved_by_name(source: SourceFile) -> Iterator[tuple[str, str]]:
    """Tensors follow the weights or the input, never a device's name."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and called_name(node) == "cuda":
            yield f"{source.name}:{node.lineno}", "calls .cuda()"


RULES: tuple[tuple[str, Finder, list[SourceFile], dict[str, str]], ...] = (
    ("file length", long_files, ALL_FILES, LONG_FILES),
    ("function length", long_functions, ALL_FILES, LONG_FUNCTIONS),
    ("nesting", deep_functions, ALL_FILES, {}),
    ("attributes", wide_classes, ALL_FILES, WIDE_CLASSES),
    ("module state", module_state, ALL_FILES, {}),
    ("swallowed errors", swallowed, ALL_FILES, {}),
    ("catch-all", catch_all, ALL_FILES, CATCH_ALL),
    ("reflection", reflection, PROGRAM_FILES, REFLECTION),
    ("device by name", moved_by_name, ALL_FILES, {}),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_house_rule(rule: tuple[str, Finder, list[SourceFile], dict[str, str]]) -> None:
    _, finder, files, exempt = rule
    found = [offence for source in files for offence in finder(source)]
    assert [f"{where}: {what}" for where, what in found if where not in exempt] == []
    unused = set(exempt) - {where for where, _ in found}
    assert not unused, "exemptions nobody needs any more"


# Written so that this file does not match itself.
UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b|Not[I]mplementedError")
ONE_MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|Users|farm)/\w")
WORKPLACE = re.compile(
    r"\bsub[-]?agents?\b|\bC[E]O\b|\bprompt [e]ngineer|\bcontract\.m[d]\b|\bissue #?\d|"
    r"\b(?:this|last|next) [s]ession of work\b",
    re.IGNORECASE,
)

# Words of our own where the field has one: docs/glossary.md.
HOME_MADE = re.compile(
    r"\b(?:look[o]ut|cre[w]|work[s]hop|back[s]tage|door[k]eeper|host[p]lace|apolo[g]ise|part[i]ng|"
    r"furn[i]sh|fore[s]ee|hin[d]er|de[a]f|tol[d](?=\s*=[^=]))\b",
    re.IGNORECASE,
)
PLAIN_FOLDERS = frozenset(
    {
        "MiniCPMO45",
        "benchmarks",
        "core",
        "docs",
        "gateway_modules",
        "launcher",
        "recording",
        "scripts",
        "settings",
        "static",
    }
)


@pytest.mark.parametrize(
    "pattern", [UNFINISHED, ONE_MACHINE, WORKPLACE], ids=["unfinished", "one machine", "workplace"]
)
def test_no_text_says(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_text_has_home_made_words() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in text_files()
        if (name := path.relative_to(ROOT)).parts[0] in PLAIN_FOLDERS
        for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1)
        if HOME_MADE.search(line)
    ]
    assert found == []


def test_the_rules_find_what_they_forbid() -> None:
    """Each finder on a small file that breaks its rule."""
    lines = "\n".join(f"        self.a{i} = {i}" for i in range(MAX_ATTRIBUTES + 1))
    deep = "\n".join(" " * 4 * (i + 1) + "if a:" for i in range(MAX_NESTING + 1))
    bad = f"""
cache = {{}}
SEEN = []
class Wide:
    def __init__(self) -> None:
{lines}
def deep(a) -> None:
{deep}
{" " * 4 * (MAX_NESTING + 2)}global cache
    try:
        SEEN.append(getattr(a, "x"))
    except Exception:
        pass
    a.cuda()
def long() -> None:
{("    a = 1" + chr(10)) * MAX_FUNCTION_LINES}
{chr(10) * MAX_FILE_LINES}
"""
    source = SourceFile(ROOT / "bad.py")
    vars(source).update(text=bad, tree=ast.parse(bad))
    for name, finder, _, _ in RULES:
        assert list(finder(source)), name
    assert len(list(module_state(source))) == 3
