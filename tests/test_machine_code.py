"""The prefetches of the batch pipeline are in the machine code, and its arithmetic is compiled for wide registers.

Compilers delete loops that only prefetch, and compile a closure without the instructions of the function around it.
Finds functions of the built Python module by name with nm, and disassembles where they are with objdump; skips where
these are not there or the processor is another. Knows nothing of what the functions compute.
"""

import platform
import re
import shutil
import subprocess
from collections import Counter

import pytest

import sanderling._native

# In a compiled look-up: buckets of the first keys, bucket of a later key, next bucket of a displaced key, the lines
# of a row (a loop) that was found at home, and of one that was not.
PREFETCHES_MIN = 5
# Copy-out, copy-out of one weight, pooling, push.
LOOKUPS_MIN = 4
LOOKUP = "sanderling_store::simd::run::run_"
# Must be inlined into these functions, and so must its closures be: then it has no symbols.
INLINED = "sanderling_store::update::edit::edit_rows::"
# Has symbols: names are still what the test takes them for.
NOT_INLINED = "sanderling_store::update::copy_on_write::edit_rows_cow"
# Functions that are so near each other are disassembled at once, with what is between: objdump reads a library of a
# hundred megabytes each time. To disassemble all of it takes half a minute.
NEAR_BYTES = 1 << 20


def prefetches(disassembly: str) -> Counter[str]:
    """Number of prefetch instructions of each function, by address and name."""
    counts: Counter[str] = Counter()
    function = ""
    for line in disassembly.splitlines():
        if match := re.fullmatch(r"([0-9a-f]+ <.*>):", line):
            function = match[1]
        elif "\tprefetch" in line:
            counts[function] += 1
    return counts


def places(symbols: str, wanted: str) -> list[tuple[int, int]]:
    """Where the functions with this in their names are, first and end, those near each other together."""
    merged: list[tuple[int, int]] = []
    for line in sorted(line for line in symbols.splitlines() if wanted in line):
        first, size = (int(number, 16) for number in line.split()[:2])
        end = first + size
        if merged and first - merged[-1][1] < NEAR_BYTES:
            first, _ = merged.pop()
        merged.append((first, end))
    return merged


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_places_of_functions() -> None:
    symbols = "0000000000900000 0000000000000010 t f::b\n0000000000000100 0000000000000020 t f::a\n"
    symbols += "0000000000000130 0000000000000001 T g\n0000000000000200 0000000000000030 t f::c\n"
    assert places(symbols, "f::") == [(0x100, 0x230), (0x900000, 0x900010)]


def test_counts_by_function() -> None:
    text = (
        "10 <f>:\n  10:\tprefetcht0 (%rax)\n  18:\tret\n20 <g>:\n  20:\tprefetcht0 (%rbx)\n  28:\tprefetcht0 (%rbx)\n"
    )
    assert prefetches(text) == {"10 <f>": 1, "20 <g>": 2}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None or platform.machine() != "x86_64":
        pytest.skip(f"needs {name} on x86_64")
    return found


LIBRARY = str(sanderling._native.__file__)


@pytest.fixture(scope="module")
def symbols() -> str:
    return output(tool("nm"), "--print-size", "--defined-only", "--demangle", LIBRARY)


def test_pushes_are_compiled_for_wide_registers(symbols: str) -> None:
    assert NOT_INLINED in symbols
    assert [line for line in symbols.splitlines() if INLINED in line] == []


def test_lookups_prefetch(symbols: str) -> None:
    objdump = tool("objdump")
    counts: Counter[str] = Counter()
    for first, end in places(symbols, LOOKUP):
        place = [f"--start-address={first}", f"--stop-address={end}"]
        counts += prefetches(output(objdump, "--disassemble", "--demangle", "--no-show-raw-insn", *place, LIBRARY))
    wide = [n for name, n in counts.items() if LOOKUP in name]
    assert sum(n >= PREFETCHES_MIN for n in wide) >= LOOKUPS_MIN, counts.most_common(20)
