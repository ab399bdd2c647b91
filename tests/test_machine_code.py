"""The prefetches of the batch pipeline are in the machine code: compilers delete loops that only prefetch.

Disassembles the built Python module with objdump and looks at functions by name; skips where there is no objdump or
another processor. Knows nothing of what the functions compute.
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


def test_counts_by_function() -> None:
    text = (
        "10 <f>:\n  10:\tprefetcht0 (%rax)\n  18:\tret\n20 <g>:\n  20:\tprefetcht0 (%rbx)\n  28:\tprefetcht0 (%rbx)\n"
    )
    assert prefetches(text) == {"10 <f>": 1, "20 <g>": 2}


def test_lookups_prefetch() -> None:
    objdump = shutil.which("objdump")
    if objdump is None or platform.machine() != "x86_64":
        pytest.skip("needs objdump on x86_64")
    command = [objdump, "--disassemble", "--demangle", "--no-show-raw-insn", sanderling._native.__file__]
    counts = prefetches(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wide = [n for name, n in counts.items() if "sanderling_store::words::run::run_" in name]
    assert sum(n >= PREFETCHES_MIN for n in wide) >= LOOKUPS_MIN, counts.most_common(20)
