"""What the repository promises about itself: sizes, layout, lazy imports, records and documents."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import accel
from accel.record import read_record

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("accel", "caching", "dllm", "sparse_attn", "token_prune", "ui")
FOLDERS = {*PACKAGES, ".ci", "tests"}
FILES = {".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "pyproject.toml"}

RECORD_KEYS = {"name", "commit", "device", "versions", "config", "seeds", "created", "command"}
HEAVY = {"diffusers", "gradio", "ray", "transformers", "triton"}
TEST_COMMAND = 'pip install -e ".[test]" && pytest'

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _python_files() -> Iterator[Path]:
    for folder in (*PACKAGES, "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def _python_blocks(markdown: str) -> Iterator[tuple[int, str]]:
    """Yields the line on which each ```python block starts, and its code."""
    for match in re.finditer(r"^```python[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL):
        yield markdown.count("\n", 0, match.start(1)) + 1, match[1]


def _modules_after(statement: str) -> set[str]:
    """Returns the top-level packages that a fresh interpreter holds after `statement`."""
    program = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_every_python_file_is_shorter_than_400_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in _python_files()}
    assert lengths
    too_long = [
        f"{path.relative_to(ROOT)}: {length}" for path, length in lengths.items() if length >= 400
    ]
    assert too_long == []


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns how many lines of a function explain it; those are not what makes it long."""
    text = ast.get_docstring(node, clean=False)
    return 0 if text is None else text.count("\n") + 1


def test_every_function_is_shorter_than_40_lines() -> None:
    too_long = []
    for path in _python_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1 - _docstring_lines(node)
                if length >= 40:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length}")
    assert too_long == []


def test_importing_accel_stays_light() -> None:
    added = _modules_after("import accel") - _modules_after("import torch")
    assert "accel" in added
    assert added & HEAVY == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_says_what_it_offers(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
    assert (ROOT / package / "py.typed").exists()
    assert ast.get_docstring(tree)
    targets = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    assert "__all__" in targets


def test_root_holds_exactly_the_design() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a git checkout tells the project's files from a user's own")
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    assert {path.parts[0] for path in paths if len(path.parts) > 1} == FOLDERS
    assert {path.name for path in paths if len(path.parts) == 1} == FILES


def test_every_record_says_where_it_comes_from() -> None:
    for path in sorted((ROOT / "tests/benchmarks/records").glob("*.json")):
        missing = RECORD_KEYS - read_record(path).keys()
        assert missing == set(), path.name


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_python_block_compiles(document: str) -> None:
    for line, code in _python_blocks((ROOT / document).read_text("utf-8")):
        compile("\n" * (line - 1) + code, document, "exec")


def test_python_blocks_are_found_with_their_line() -> None:
    assert list(_python_blocks("a\n```python\nx = 1\n```\n```bash\nls\n```\n")) == [(3, "x = 1\n")]


def test_the_method_of_the_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (_, method), (_, behaviour) = _python_blocks(guide)
    module = ModuleType("caching.alternate")
    exec(method, vars(module))
    monkeypatch.setattr("caching.Alternate", module.Alternate, raising=False)
    scope: dict[str, Any] = {}
    exec(behaviour, scope)
    scope["test_blocks_rest_on_every_second_step"]()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert TEST_COMMAND in (ROOT / "README.md").read_text("utf-8").splitlines()
    assert TEST_COMMAND in (ROOT / ".ci/run").read_text("utf-8")


def test_changelog_names_the_version() -> None:
    assert f"[{accel.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_no_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(item for extra in extras for item in extra)]
    pinned = [item for item in requirements if re.search(r"[^>!]=|<|~", item.split(";")[0])]
    assert pinned == []
