"""Holds this repository to the rules of `structure.py`, and each rule to being able to fail."""

import subprocess
from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def files() -> list[str]:
    """Every file that git tracks and that is still there, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("skipped: not a git checkout, so there is no list of tracked files")
    return [file for file in listed.stdout.split("\0") if file and (ROOT / file).is_file()]


def test_crates_know_only_whom_they_may() -> None:
    assert structure.edge_problems(ROOT, structure.EDGES) == []


def test_files_open_with_their_purpose(files: list[str]) -> None:
    assert structure.purpose_problems(ROOT, files) == []


def test_names_say_what_is_inside(files: list[str]) -> None:
    assert structure.name_problems(files) == []


def test_unsafe_is_where_it_may_be_and_explained(files: list[str]) -> None:
    assert structure.unsafe_problems(ROOT, files, structure.UNSAFE) == []


def test_links_lead_somewhere(files: list[str]) -> None:
    assert structure.link_problems(ROOT, files) == []


def test_readme_commands_exist() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    assert "make test" in readme
    assert structure.command_problems(readme, makefile) == []


def features(*selected: str) -> set[str]:
    """Every dependency of what is selected, with its version and features: a build of one set is used by no other."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--no-dedupe", *selected]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.removesuffix(" (*)") for line in listed.splitlines()}


def test_the_python_module_is_built_from_what_tests_were() -> None:
    # Else arrow and all above it are compiled twice: add the feature to crates/python/Cargo.toml.
    alone = features("--package", "sanderling-python", "--edges", "normal,build")
    assert alone - features("--workspace", "--edges", "normal,build,dev") == set()


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
