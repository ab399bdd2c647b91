"""The rules of the source tree, as functions from a tree to the list of what breaks them.

They read files and judge text; they know nothing of what the code does and run none of it.
`test_structure.py` applies them to this repository and to small wrong trees, so that each rule is known to be
able to fail.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

# Who may know whom. A crate that is not listed may not exist; see ARCHITECTURE.md for the reasons.
EDGES: dict[str, set[str]] = {
    "objects": set(),
    "sample": {"objects"},
    "hub": {"sample", "observe", "wire", "transport"},
    "store": set(),
    "sync": {"store"},
    "wire": set(),
    "client": {"sample", "store", "sync", "wire", "transport", "observe"},
    "feed": {"sample", "hub", "client", "store", "observe"},
    "job": {"sample", "hub", "client", "sync", "wire", "transport", "store", "observe"},
    "learner": {"sample", "hub", "job", "client", "store", "observe"},
    "observe": set(),
    "transport": set(),
    "server": {"wire", "transport", "store", "sync", "observe"},
    "control": {"server", "observe", "transport"},
    "bench": {"sample", "store", "observe", "wire", "transport", "client", "server", "control"},
    "load": {"sample", "store", "client", "server", "observe", "wire", "transport"},
    "cli": {"sample", "hub", "feed", "store", "client", "learner", "observe", "bench", "load", "server", "control"}
    | {"wire", "transport", "job"},
    "python": {"cli", "learner", "sample", "store", "client", "hub", "feed", "job", "control"} | {"observe"},
}

# The modules that may hold `unsafe` code, each with the reason it cannot do without.
UNSAFE: dict[str, str] = {
    "crates/python/src/view.rs": "numpy arrays over memory that the array's owner keeps",
    "crates/sample/src/libsvm.rs": "calls code compiled for instructions that were detected",
    "crates/sample/src/mapped.rs": "mapping a file, which nobody can promise to stay as it is",
    "crates/sample/src/scan.rs": "vector loads and stores",
    "crates/sample/src/tokens.rs": "vector loads, stores and gathers",
    "crates/store/src/directory.rs": "a pointer to the present index, freed only after its readers have left",
    "crates/store/src/bucket.rs": "promises that a bucket is made of atomics",
    "crates/store/src/memory.rs": "mapping of huge pages, advice to the kernel, slices over what was mapped",
    "crates/store/src/near/lanes.rs": "vector loads and stores of copied rows, in code compiled for what was detected",
    "crates/store/src/prefetch.rs": "the prefetch instruction takes a raw pointer",
    "crates/store/src/slab.rs": "shows a row's atomics as plain numbers while nobody may change them",
    "crates/store/src/words.rs": "vector loads and stores of atomics, which only assembly can express",
    "crates/store/src/words/halves.rs": "the same for halves",
    "crates/transport/src/shm/memory.rs": "mapping of shared memory, references and copies into what was mapped",
    "crates/transport/tests/ring_model.rs": "loom's cells give raw pointers",
}

# Names that say nothing of what is in the file.
EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "tool", "tools", "util", "utils"}

# A shorter opening comment cannot say what a file is for.
PURPOSE_CHARS_MIN = 20


def edge_problems(root: Path, edges: dict[str, set[str]]) -> list[str]:
    """Dependencies between our crates that the allow-list does not have, and crates that it does not know."""
    problems = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        crate = manifest.parent.name
        if crate not in edges:
            problems.append(f"crates/{crate}: not in the list of crates")
            continue
        for table in _dependency_tables(tomllib.loads(manifest.read_text())):
            for name in table:
                other = name.removeprefix("sanderling-")
                if other != name and other not in edges[crate]:
                    problems.append(f"crates/{crate}: may not depend on {other}")
    return problems


def _dependency_tables(manifest: dict[str, Any]) -> Iterator[Iterable[str]]:
    kinds = ("dependencies", "dev-dependencies", "build-dependencies")
    for holder in (manifest, *manifest.get("target", {}).values()):
        for kind in kinds:
            yield holder.get(kind, {})


def purpose_problems(root: Path, files: list[str]) -> list[str]:
    """Source files that do not open with a comment saying what they are for."""
    return [f"{file}: does not open with its purpose" for file in files if not _has_purpose(root / file)]


def _has_purpose(path: Path) -> bool:
    text = path.read_text(errors="replace").lstrip("\ufeff")
    if text.startswith("#!") and not text.startswith("#!["):
        text = text.partition("\n")[2]
    first = text.lstrip().partition("\n")[0]
    if path.suffix == ".rs":
        comment = first.removeprefix("//!") if first.startswith("//!") else ""
    elif path.suffix in {".py", ".pyi"}:
        comment = ast.get_docstring(ast.parse(text)) or first.partition("#")[2]
    elif path.suffix in {".toml", ".sh", ".yml", ".yaml"} or path.name == "Makefile" or path.parent.name == ".ci":
        comment = first.removeprefix("#") if first.startswith("#") else ""
    else:
        return True
    return len(comment.strip()) >= PURPOSE_CHARS_MIN


def name_problems(files: list[str]) -> list[str]:
    """Files and folders whose names say nothing, or that are a second version of another file."""
    problems = []
    for file in files:
        for part in PurePosixPath(file).parts:
            words = re.split(r"[_\-.]", part.lower())
            if EMPTY_NAMES.intersection(words):
                problems.append(f"{file}: '{part}' does not say what is in it")
            if re.search(r"_v\d+$", PurePosixPath(part).stem):
                problems.append(f"{file}: '{part}' is a version, not a name")
    return problems


def unsafe_problems(root: Path, files: list[str], allowed: dict[str, str]) -> list[str]:
    """Unsafe code outside the modules that may have it, or without a SAFETY comment, and idle permissions."""
    problems = []
    holders = set()
    for file in files:
        if not file.endswith(".rs"):
            continue
        text = (root / file).read_text(errors="replace")
        lines, code = text.splitlines(), _code_only(text).splitlines()
        for number, line in enumerate(code):
            found = re.search(r"\bunsafe\b\s*(\{|impl\b|fn\b|trait\b|extern\b|$)", line)
            permits = "allow(unsafe_code)" in line
            if not found and not permits:
                continue
            holders.add(file)
            if file not in allowed:
                problems.append(f"{file}:{number + 1}: unsafe code outside the allowed modules")
            elif found and found.group(1) in {"{", "impl", ""} and not _has_safety_comment(lines, code, number):
                problems.append(f"{file}:{number + 1}: unsafe without a SAFETY comment above it")
    problems += [f"{file}: may hold unsafe code but holds none" for file in allowed if file not in holders]
    return problems


def _has_safety_comment(lines: list[str], code: list[str], number: int) -> bool:
    """Looks on the line itself, then upward through comments, attributes and the start of its statement."""
    if "SAFETY:" in lines[number]:
        return True
    in_comment = False
    for above in range(number - 1, -1, -1):
        line, bare = lines[above].strip(), code[above].strip()
        if line.startswith("//"):
            in_comment = True
            if "SAFETY:" in line:
                return True
        elif in_comment or not line or (bare.endswith((";", "{", "}")) and not bare.startswith("#")):
            return False
    return False


def _code_only(text: str) -> str:
    """The text with comments, strings and character literals blanked, line by line as it was."""
    literal = re.compile(
        r"""//[^\n]*|/\*.*?\*/|b?r(?P<hash>\#*)"(?:.*?)"(?P=hash)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
        re.DOTALL,
    )
    return literal.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def link_problems(root: Path, files: list[str]) -> list[str]:
    """Relative links of the markdown files that lead nowhere, headings included."""
    problems = []
    for file in files:
        if not file.endswith(".md"):
            continue
        path = root / file
        for target in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", _prose_only(path.read_text())):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            to = path if not name else path.parent / name
            if not to.exists():
                problems.append(f"{file}: link to {target}, which is not there")
            elif anchor and to.suffix == ".md" and anchor not in _anchors(to.read_text()):
                problems.append(f"{file}: link to {target}, a heading that is not there")
    return problems


def _prose_only(markdown: str) -> str:
    without_blocks = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", without_blocks)


def _anchors(markdown: str) -> set[str]:
    headings = re.findall(r"^#+ +(.*?)\s*$", markdown, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_problems(readme: str, makefile: str) -> list[str]:
    """`make` commands of the README that the Makefile does not have."""
    code = re.findall(r"^```.*?^```|`[^`\n]+`", readme, flags=re.DOTALL | re.MULTILINE)
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    # Only where a command starts: a line of a block, an inline code span, or after `&&` and `;`.
    wanted = re.findall(r"(?:^|[`;&$])[ \t]*make[ \t]+([a-z][a-z-]*)", "\n".join(code), flags=re.MULTILINE)
    return [f"README.md: make {target} does not exist" for target in wanted if target not in targets]
