"""Draws what `crates/store/examples/gather_list.rs` measures: CPU time per row of two ways to answer a pull by RDMA.

    python bench/gather_list.py PROGRAM SLAB_MIB ROUNDS FOLDER OUTPUT.svg

It runs the program, prints its figures as a table in markdown, and draws the time of a copy and of a gather list over
the delay per cache line of the memory, with a line per size of a row.
"""

# ruff: noqa: T201 -- printing is what this script is for.

import csv
import itertools
import math
import subprocess
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 70, 40, 150, 60
COLORS = {64: "#4269d0", 128: "#efb118", 256: "#ff725c", 512: "#6cc5b0", 1024: "#3ca951", 4096: "#a463f2"}
# A logarithmic axis has no 0: the undelayed memory is drawn there.
UNDELAYED = 1.0

Figures = dict[int, dict[str, list[tuple[float, float]]]]


def measure(program: str, slab_mib: str, rounds: str, folder: str) -> Figures:
    """Row bytes -> way -> (delay per line, ns per row), by delay."""
    done = subprocess.run([program, slab_mib, rounds, folder], check=True, capture_output=True, text=True)
    figures: Figures = {}
    for row in csv.DictReader(done.stdout.splitlines()):
        ways = figures.setdefault(int(row["row_bytes"]), {})
        ways.setdefault(row["way"], []).append((float(row["delay_ns_per_line"]), float(row["ns_per_row"])))
    return figures


def crossing(copies: list[tuple[float, float]], list_ns: float) -> float:
    """The delay per line from which a copy takes twice as long as the list, between the measured delays."""
    for (low, before), (high, after) in itertools.pairwise(copies):
        if before >= 2 * list_ns:
            return low
        if after >= 2 * list_ns:
            return low + (high - low) * (2 * list_ns - before) / (after - before)
    return math.inf


def table(figures: Figures) -> str:
    """The figures in markdown."""
    lines = [
        "| row bytes | copy, huge pages | copy, 4 KiB pages | list | copy = 2 x list at a delay per line of |",
        "|---|---|---|---|---|",
    ]
    for row_bytes, ways in figures.items():
        list_ns = ways["list"][0][1]
        small = f"{ways['copy_4k'][0][1]:.1f} ns" if "copy_4k" in ways else ""
        at = crossing(ways["copy"], list_ns)
        text = "0, so always" if at == 0 else f"{at:.1f} ns"
        lines.append(f"| {row_bytes} | {ways['copy'][0][1]:.1f} ns | {small} | {list_ns:.1f} ns | {text} |")
    return "\n".join(lines)


def drawing(figures: Figures) -> str:
    """The figures as SVG."""
    points = [point for ways in figures.values() for points in ways.values() for point in points]
    x_max = max(delay for delay, _ in points)
    y_low = 10 ** math.floor(math.log10(min(ns for _, ns in points)))
    y_high = 10 ** math.ceil(math.log10(max(ns for _, ns in points)))
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(delay: float) -> float:
        return LEFT + inner_width * math.log(max(delay, UNDELAYED) / UNDELAYED) / math.log(x_max / UNDELAYED)

    def y(ns: float) -> float:
        return TOP + inner_height * (1 - math.log(ns / y_low) / math.log(y_high / y_low))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20">CPU time per row: copy (lines) and gather list (dashes)</text>',
        f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 12}" text-anchor="middle">delay per cache line, ns</text>',
        f'<text transform="translate(16 {TOP + inner_height / 2}) rotate(-90)" text-anchor="middle">ns per row</text>',
    ]
    decade = y_low
    while decade <= y_high:
        at = y(decade)
        out.append(f'<path d="M{LEFT} {at:.1f}H{LEFT + inner_width}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{decade:g}</text>')
        decade *= 10
    for delay in sorted({delay for delay, _ in points}):
        out.append(f'<text x="{x(delay):.1f}" y="{TOP + inner_height + 18}" text-anchor="middle">{delay:g}</text>')
    for number, (row_bytes, ways) in enumerate(figures.items()):
        color, list_ns = COLORS.get(row_bytes, "black"), ways["list"][0][1]
        path = "L".join(f"{x(delay):.1f} {y(ns):.1f}" for delay, ns in ways["copy"])
        out.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        dashes = f'stroke="{color}" stroke-dasharray="5 4"'
        out.append(f'<path d="M{LEFT} {y(list_ns):.1f}H{LEFT + inner_width}" {dashes}/>')
        at = TOP + 16 + 18 * number
        out.append(f'<rect x="{WIDTH - RIGHT + 20}" y="{at - 9}" width="10" height="10" fill="{color}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 36}" y="{at}">{row_bytes} bytes</text>')
    return "\n".join([*out, "</svg>\n"])


def main() -> None:
    """Measures, prints and draws."""
    program, slab_mib, rounds, folder, output = sys.argv[1:]
    figures = measure(program, slab_mib, rounds, folder)
    print(table(figures))
    Path(output).write_text(drawing(figures))


if __name__ == "__main__":
    main()
