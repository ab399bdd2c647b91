"""Holds this repository to the rules of `structure.py`, and each rule to being able to fail."""

import subprocess
import tomllib
from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def files() -> list[str]:
    tracked = structure.tracked_files(ROOT)
    if tracked is None:
        pytest.skip("skipped: not a git checkout, so there is no list of tracked files")
    return tracked


def test_crates_have_only_allowed_dependencies() -> None:
    assert structure.edge_problems(ROOT, structure.EDGES) == []


def test_files_open_with_their_purpose(files: list[str]) -> None:
    assert structure.purpose_problems(ROOT, files) == []


def test_names_are_not_empty(files: list[str]) -> None:
    assert structure.name_problems(files) == []


def test_unsafe_code_is_allowed_and_explained(files: list[str]) -> None:
    assert structure.unsafe_problems(ROOT, files, structure.UNSAFE) == []


def test_links_have_targets(files: list[str]) -> None:
    assert structure.link_problems(ROOT, files) == []


def test_readme_commands_exist() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    assert "make test" in readme
    assert structure.command_problems(readme, makefile) == []


@pytest.mark.parametrize("kind", structure.COUNTS)
def test_counts_may_only_fall(kind: str, files: list[str]) -> None:
    ceilings = tomllib.loads((ROOT / "tests" / "ceilings.toml").read_text())
    assert structure.ceiling_problems(structure.COUNTS[kind](ROOT, files), ceilings[kind]) == []


def test_the_commit_has_a_short_subject() -> None:
    command = ["git", "log", "--max-count=1", "--no-merges", "--format=%s"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("skipped: not a git checkout, so there is no commit")
    assert structure.subject_problems(listed.stdout.splitlines()) == []


def features(*selected: str) -> set[str]:
    """The dependencies of the selected packages, with version and features; each feature set is a separate build."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--no-dedupe", *selected]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.removesuffix(" (*)") for line in listed.splitlines()}


def test_the_python_module_shares_the_build_of_the_tests() -> None:
    # Otherwise arrow and its dependents are compiled twice: the feature `workspace` of crates/python adds features.
    edges = ("--edges", "normal,build")
    module = features("--package", "sanderling-python", "--features", "workspace", *edges)
    dependencies = {line for line in module if not line.startswith("sanderling-python ")}
    assert dependencies - features("--workspace", "--edges", "normal,build,dev") == set()


# From here on: the rules against small trees that break them.


def write(root: Path, tree: dict[str, str]) -> list[str]:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(tree)


@pytest.mark.parametrize(
    ("manifest", "problems"),
    [
        ("[dependencies]\nsanderling-sample = { workspace = true }\nserde = '1'", 0),
        ("[dependencies]\nsanderling-store = { workspace = true }", 1),
        ("[dev-dependencies]\nsanderling-store = { workspace = true }", 1),
        ("[target.'cfg(unix)'.dependencies]\nsanderling-store = { workspace = true }", 1),
    ],
)
def test_a_forbidden_edge_is_found(tmp_path: Path, manifest: str, problems: int) -> None:
    write(tmp_path, {"crates/hub/Cargo.toml": manifest})
    assert len(structure.edge_problems(tmp_path, structure.EDGES)) == problems


def test_an_unknown_crate_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"crates/mystery/Cargo.toml": "[package]\nname = 'mystery'"})
    assert structure.edge_problems(tmp_path, structure.EDGES) == ["crates/mystery: not in the list of crates"]


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("a.rs", "//! Reads a row; knows no file.\nfn a() {}\n", True),
        ("a.rs", "// Reads a row; knows no file.\nfn a() {}\n", False),
        ("a.rs", "//! placeholder\n", False),
        ("a.rs", "fn a() {}\n", False),
        ("a.rs", "", False),
        ("a.py", '"""Reads a row; knows no file."""\n', True),
        ("a.py", "#!/usr/bin/env python3\n# Reads a row; knows no file.\n", True),
        ("a.py", "import sys\n# Reads a row; knows no file.\n", False),
        ("a.pyi", "import sys\n", False),
        ("a.toml", "# Reads a row; knows no file.\na = 1\n", True),
        ("a.toml", "a = 1 # Reads a row; knows no file.\n", False),
        ("Makefile", "all:\n", False),
        ("a.sh", "#!/usr/bin/env bash\nset -e\n", False),
        ("a.sh", "#!/usr/bin/env bash\n# Reads a row; knows no file.\n", True),
        (".ci/run", "#!/usr/bin/env bash\nset -e\n", False),
        ("a.csv", "1,2\n", True),
    ],
)
def test_a_file_without_purpose_is_found(tmp_path: Path, name: str, text: str, good: bool) -> None:
    assert (structure.purpose_problems(tmp_path, write(tmp_path, {name: text})) == []) == good


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("crates/sample/src/csv.rs", 0),
        ("crates/sample/src/commonality.rs", 0),
        ("crates/sample/src/util.rs", 1),
        ("crates/sample/src/table_manager.rs", 1),
        ("crates/common/src/lib.rs", 1),
        ("crates/sample/src/csv_v2.rs", 1),
        ("python/tools/__init__.py", 1),
    ],
)
def test_an_empty_name_is_found(name: str, problems: int) -> None:
    assert len(structure.name_problems([name])) == problems


ALLOW = "#![allow(unsafe_code)]\n"
UNSAFE_ROWS = [
    ('fn a() { /* unsafe { */ let s = "unsafe { }"; } // unsafe {\n', False, 0),
    ("#![deny(unsafe_code)]\n#![deny(unsafe_op_in_unsafe_fn)]\n", False, 0),
    ("fn a<'x>(b: &'x str) { let q = '\"'; } // unsafe {\n", False, 0),
    ("// SAFETY: nothing to uphold.\nfn a() { unsafe { b() } }\n", False, 1),
    (ALLOW, False, 1),
    (ALLOW + "fn a() {\n    // SAFETY: checked above.\n    unsafe { b() }\n}\n", True, 0),
    (
        ALLOW + "fn a() {\n    // SAFETY: as\n    // above.\n    let c =\n        unsafe { b() };\n}\n",
        True,
        0,
    ),
    (ALLOW + "fn a() {\n    unsafe { b() }\n}\n", True, 1),
    (ALLOW + "fn a() {\n    // SAFETY: of another.\n    c();\n    unsafe { b() }\n}\n", True, 1),
    (ALLOW + "unsafe impl Send for A {}\n", True, 1),
    (ALLOW + "// SAFETY: holds no pointer.\nunsafe impl Send for A {}\n", True, 0),
    ("fn a() {}\n", True, 1),
]


@pytest.mark.parametrize(("text", "allowed", "problems"), UNSAFE_ROWS)
def test_unexplained_unsafe_is_found(tmp_path: Path, text: str, allowed: bool, problems: int) -> None:
    files = write(tmp_path, {"a.rs": text})
    found = structure.unsafe_problems(tmp_path, files, {"a.rs": "a test"} if allowed else {})
    assert len(found) == problems, found


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[a](b.md) and [c](https://example.org/x) and `[d](nowhere.md)`", 0),
        ("[a](b.md#the-second-one) and [b](#here)\n# Here\n", 0),
        ("[a](nowhere.md)", 1),
        ("[a][b]\n\n[b]: b.md#here\n", 1),
        ("![a](nowhere.png)", 1),
        ("[a](b.md#nowhere)", 1),
        ("```\n[a](nowhere.md)\n```\n", 0),
    ],
)
def test_a_dead_link_is_found(tmp_path: Path, text: str, problems: int) -> None:
    files = write(tmp_path, {"a.md": text, "b.md": "# B\n## The second one\n"})
    assert len(structure.link_problems(tmp_path, files)) == problems


@pytest.mark.parametrize(
    ("readme", "problems"),
    [
        ("`make test` will make sense", 0),
        ("```\nmake test && make demo\n```", 0),
        ("```\nmake tset\n```", 1),
        ("`make tset`", 1),
    ],
)
def test_a_missing_command_is_found(readme: str, problems: int) -> None:
    assert len(structure.command_problems(readme, "test: ## x\ndemo:\n")) == problems


def test_a_count_above_its_ceiling_is_found() -> None:
    assert structure.ceiling_problems({"a": 2, "b": 1, "c": 0}, {"a": 2}) == ["b: 1, at most 0"]


def test_ceilings_are_lowered_and_never_raised() -> None:
    ceilings = {"lines": {"a": 5, "b": 5, "c": 5}}
    assert structure.lowered(ceilings, {"lines": {"a": 3, "b": 9}}) == {"lines": {"a": 3, "b": 5}}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("// Whoever holds the lock waits.", 1),
        ("    /// the same as above.", 1),
        ("//! A lock that nobody holds.", 1),
        ("// A thread that holds the lock waits; see what it does.", 0),
        ('let a = "Who is this";', 0),
    ],
)
def test_a_vague_comment_is_counted(tmp_path: Path, line: str, count: int) -> None:
    files = write(tmp_path, {"crates/hub/src/a.rs": f"//! Reads a row.\n{line}\n"})
    assert structure.comment_counts(tmp_path, files) == {"hub": count}


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('bail!("nobody answers {address}")', 1),
        ('bail!("no server answers {address}")', 0),
        ('a("what")', 0),
        ('// "nobody is here"', 0),
        ('#[cfg(test)]\nmod tests {\n    const A: &str = "nobody is here";\n}', 0),
    ],
)
def test_a_vague_message_is_counted(tmp_path: Path, code: str, count: int) -> None:
    files = write(tmp_path, {"crates/hub/src/a.rs": code})
    assert structure.message_counts(tmp_path, files) == {"hub": count}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('def a() -> None:\n    """Pushes rows. Those that are new are made."""\n', 1),
        ("# Somebody else reads\n# the file.\n", 1),
        ('"""Pushes rows, and\nthose that are new are made."""\n', 0),
    ],
)
def test_a_vague_docstring_is_counted(tmp_path: Path, text: str, count: int) -> None:
    assert structure.stub_counts(tmp_path, write(tmp_path, {"python/a.pyi": text})) == {"python/a.pyi": count}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("A row is made. Those that are old stay.", 1),
        ("- Whose row it is\n- the row,\n  whose key is 1", 1),
        ("| key | row |\n|---|---|\n| 1 | The same |", 1),
        ("| What | whose |\n|---|---|\n| 1 | 2 |", 0),
        ("# What a server does\n\nIt serves somebody's\nrows.", 1),
        ("What is a row? A vector.", 0),
        ("```\nWhat a command prints.\n```", 0),
    ],
)
def test_a_vague_sentence_of_a_page_is_counted(tmp_path: Path, text: str, count: int) -> None:
    assert structure.page_counts(tmp_path, write(tmp_path, {"a.md": text})) == {"a.md": count}


def test_a_wide_line_of_a_page_is_counted(tmp_path: Path) -> None:
    prose, rows, block = [120, 121], [499, 500], [140, 141]
    lines = [*("a" * width for width in prose), *(f"|{'b' * width}" for width in rows), "```"]
    text = "\n".join([*lines, *("c" * width for width in block), "```"])
    assert structure.column_counts(tmp_path, write(tmp_path, {"a.md": text, "a.rs": "d" * 121})) == {"a.md": 3}


def test_a_long_source_file_is_found(tmp_path: Path) -> None:
    files = write(tmp_path, {"a.rs": "\n" * 501, "b.py": "\n" * 500, "c.md": "\n" * 600})
    assert structure.line_counts(tmp_path, files) == {"a.rs": 501}


def test_a_long_subject_is_found() -> None:
    assert len(structure.subject_problems(["a" * 72, "b" * 73])) == 1


def source(*used: str) -> str:
    return "".join(f"use {path};\n" for path in used)


CIRCLE = {"b.rs": source("crate::c::C"), "c.rs": source("crate::d::{self, D}"), "d/mod.rs": source("std::fs")}


@pytest.mark.parametrize(
    ("tree", "size"),
    [
        (CIRCLE, 0),
        (CIRCLE | {"d/mod.rs": source("crate::b::B")}, 0),
        (CIRCLE | {"d/mod.rs": source("crate::a::A"), "a.rs": source("crate::b::{e::E, B as A}")}, 4),
        (CIRCLE | {"d/mod.rs": source("crate::A"), "a.rs": source("crate::b"), "lib.rs": source("a::A")}, 4),
        (CIRCLE | {"d/mod.rs": "#[cfg(test)]\nmod tests {\nuse crate::a;\n}", "a.rs": source("crate::b")}, 0),
    ],
)
def test_a_circle_of_imports_is_found(tmp_path: Path, tree: dict[str, str], size: int) -> None:
    files = write(tmp_path, {"crates/hub/src/lib.rs": ""} | {f"crates/hub/src/{name}": tree[name] for name in tree})
    assert structure.circle_counts(tmp_path, files) == ({"hub": size} if size else {})
