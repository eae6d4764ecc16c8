"""Which of 40 breakages of the core do the tests notice?

Run as `python -m benchmarks.experiments.mutations [--from N] [--count M]`.

Each breakage is one small change to one line that the tests run: the other half of a comparison, a constant off by
one, a `not` that is gone, a value that is not returned, a statement that is left out. A seed draws them: number 7 is
the same on every machine as long as the code is. All happens in a copy of the checkout. First the tests that run the
broken line in their own process are run; where the line is also run in child processes or at import, then what `make
test` runs; both until the first failure. A test that fails must fail once more alone, and pass alone where nothing is
broken, because a busy machine fails some by chance. A run without end counts as caught.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click
from coverage import CoverageData

CHECKOUT = Path(__file__).parents[2]
CORE = ("edge_sdk", "tools/edge_sdk_tools")
_LEFT_OUT = (
    "edge_sdk/cli",
    "tools/edge_sdk_tools/demo",
    "tools/edge_sdk_tools/arm_cost",
    "tools/edge_sdk_tools/report",
)
TESTS = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "smoke or not (system or long)")
_OTHER = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
Executed: TypeAlias = dict[str, dict[int, set[str]]]
"""For each file and line the tests that run it; the empty one stands for child processes and imports."""

_MOST_TESTS = 300  # on a command line; a line that more tests run is broken before all of them
_CHANCES = 3
_NOTICED = (1, 2, 3)  # pytest: a test failed, it was interrupted (an import failed), or it broke itself


class Mutant(NamedTuple):
    """One change: `old` at these places of one line is replaced by `new`; columns count bytes, as ast does."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The file's text with the change."""
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1].encode()
        lines[self.line - 1] = (text[: self.start] + self.new.encode() + text[self.end :]).decode()
        return "".join(lines)


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """All that can be broken in one file; none in its annotations and docstrings."""
    tree = ast.parse(source)
    idle = {id(inner) for node in ast.walk(tree) for part in _idle_parts(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in idle:
            continue
        for kind, part, new in _changes(node):
            old = ast.get_source_segment(source, part)
            if old is None or "\n" in old:
                continue
            yield Mutant(file, part.lineno, part.col_offset, part.end_col_offset or 0, kind, old, new)


def _idle_parts(node: ast.AST) -> Iterator[ast.AST]:
    """What no run evaluates, or nobody could notice."""
    for name in ("annotation", "returns"):
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            yield part
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        yield node


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Kind, what is replaced, and by what."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield "comparison", node, f"({left}) {_OTHER[type(node.ops[0])]} ({right})"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", node, repr(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Return) and node.value is not None:
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        yield "return", node, "return True" if is_none else "return None"
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise | ast.Delete) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "statement", node, "pass"


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def chosen(seed: int, count: int, executed: Executed) -> list[Mutant]:
    """As many of each kind, and no line twice."""
    found = [
        mutant
        for file in sorted(executed)
        if file.startswith(CORE) and not file.startswith(_LEFT_OUT)
        for mutant in mutants_of(file, (CHECKOUT / file).read_text(encoding="utf-8"))
        if mutant.line in executed[file]
    ]
    numbers, taken = random.Random(seed), list[Mutant]()
    kinds = sorted({mutant.kind for mutant in found})
    while len(taken) < count:
        kind, lines = kinds[len(taken) % len(kinds)], {(mutant.file, mutant.line) for mutant in taken}
        left = [mutant for mutant in found if mutant.kind == kind and (mutant.file, mutant.line) not in lines]
        drawn = numbers.choice(left)
        if _compiles(drawn.apply((CHECKOUT / drawn.file).read_text(encoding="utf-8"))):
            taken.append(drawn)
        else:
            found.remove(drawn)
    return taken


class Copy:
    """A copy of the checkout in which tests run; use it as a context."""

    def __init__(self, tests: Sequence[str], limit_s: float) -> None:
        self._tests, self._limit_s = tests, limit_s
        self._work = tempfile.TemporaryDirectory(prefix="mutations-")
        self.folder = Path(self._work.name) / "checkout"

    def __enter__(self) -> Copy:
        left_out = shutil.ignore_patterns(".git", ".venv*", ".cache", "*_cache", "__pycache__", "demo-output", "dist")
        shutil.copytree(CHECKOUT, self.folder, ignore=left_out, symlinks=True)
        Path(self._work.name).chmod(0o755)  # some tests run programs as another user
        return self

    def __exit__(self, *_: object) -> None:
        self._work.cleanup()

    def notices(self, mutant: Mutant, tests: set[str]) -> str:
        """What fails with this change, or nothing; `tests` are those that run the line."""
        path = self.folder / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.apply(before), encoding="utf-8")
        named = sorted(tests - {""})
        try:
            found = self._sure_failure(named) if 0 < len(named) <= _MOST_TESTS else ""
            if not found and ("" in tests or len(named) > _MOST_TESTS):
                found = self._sure_failure([])
        finally:
            path.write_text(before, encoding="utf-8")
        if _test_of(found) and self._failure([_test_of(found)]):
            sys.exit(f"fails with nothing broken: {found}")
        return found

    def executed(self, kept: Path) -> Executed:
        """What the tests run; measured once, and kept."""
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.environ["COVERAGE_FILE"] = str(kept.absolute())
            measure = ["--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]
            self._failure(["--maxfail=1000", *self._tests, *measure], 6)  # being measured, some tests fail
            del os.environ["COVERAGE_FILE"]
        data = CoverageData(str(kept.absolute()))
        data.read()
        return {
            path.rpartition("/checkout/")[2]: {
                line: {context.partition("|")[0] for context in contexts}
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }

    def _sure_failure(self, named: Sequence[str]) -> str:
        """What fails, and fails again alone."""
        for _ in range(_CHANCES):
            failure = self._failure([*self._tests, *named])
            if not _test_of(failure) or self._failure([_test_of(failure)]):
                return failure
        return ""

    def _failure(self, arguments: Sequence[str], patience: float = 1) -> str:
        """The first line that says what failed; empty when all passes."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
        # This copy before what is installed, for every program that a test starts.
        path = os.pathsep.join((str(self.folder), str(self.folder / "tools")))
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=self._limit_s * patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"no end within {self._limit_s * patience:g} s"
        words = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if process.returncode in _NOTICED:
            return words[0] if words else f"pytest ended with {process.returncode}: {said.strip()[-200:]}"
        # 5: no test of these files is among those that are run.
        return (
            "" if process.returncode in (0, 5) else sys.exit(f"pytest ended with {process.returncode}: {said[-2000:]}")
        )


def _test_of(failure: str) -> str:
    """The test that failed, itself or in a fixture; empty where none is named."""
    kind, _, rest = failure.partition(" ")
    return rest.partition(" - ")[0] if kind in ("FAILED", "ERROR") and "::" in rest else ""


@click.command()
@click.option("--seed", default=16, show_default=True, help="Which breakages are drawn.")
@click.option("--of", "total", default=40, show_default=True, help="How many are drawn.")
@click.option("--from", "first", default=0, show_default=True, help="The number of the first that is tried.")
@click.option("--count", default=40, show_default=True, help="How many are tried.")
@click.option("--limit", "limit_s", default=600.0, show_default=True, help="Seconds for one run of the tests.")
@click.option("--show", is_flag=True, help="Only list them.")
@click.option(
    "--executed",
    type=click.Path(path_type=Path, dir_okay=False),
    default=CHECKOUT / ".cache" / "executed.coverage",
    help="What coverage.py found of the tests; made where it is missing. Remove it after a change.",
)
@click.argument("tests", nargs=-1)
def main(
    seed: int, total: int, first: int, count: int, limit_s: float, show: bool, executed: Path, tests: tuple[str, ...]
) -> None:
    """Break the core and see what the tests say; TESTS are pytest's arguments, those of `make test` by default."""
    with Copy(tests or TESTS, limit_s) as copy:
        lines = copy.executed(executed)
        drawn = chosen(seed, total, lines)
        missed = tried = 0
        for number, mutant in list(enumerate(drawn))[first : first + count]:
            what = f"{number:2} {mutant.file}:{mutant.line} {mutant.kind}: {mutant.old} -> {mutant.new}"
            if show:
                print(what)
                continue
            start = time.monotonic()
            failure = copy.notices(mutant, lines[mutant.file][mutant.line])
            tried, missed = tried + 1, missed + (not failure)
            print(
                f"{'caught' if failure else 'MISSED'} {what} ({time.monotonic() - start:.0f} s) {failure}", flush=True
            )
        if tried:
            print(f"{tried - missed} of {tried} caught")


if __name__ == "__main__":
    main()
