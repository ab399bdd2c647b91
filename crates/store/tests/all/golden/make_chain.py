"""Writes `chain/`: a full checkpoint and two deltas, byte by byte as docs/checkpoint-format.md says.

The table `t` has a weight and a momentum per row, and holds afterwards:

    full checkpoint  1: 0.5, 0.25    2: -1, 0     3: 8, 1
    delta 1          1: 1.5, 0.5     4: 4, -2     without 2
    delta 2          2: 7, 0         without 4

Run `python make_chain.py` beside it.
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent / "chain"
SHAPE = (1, 1)
EPOCHS = (1_700_000_000_000_000, 1_700_000_000_000_003, 1_700_000_000_000_004)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def header(magic: bytes, generation: int, sequence: int, more: bytes) -> bytes:
    size = 40 + len(more)
    checked = struct.pack("<IQIIII", 1, generation, size, *SHAPE, sequence) + more
    return magic + struct.pack("<I", crc32c(checked)) + checked


def block(count: int, payload: bytes) -> bytes:
    return struct.pack("<II", count, crc32c(payload)) + payload


def row(key: int, frequency: int, last_use: int, version: int, weight: float, momentum: float) -> bytes:
    return struct.pack("<QIIIff", key, frequency, last_use, version, weight, momentum)


def table(rows: list[bytes]) -> bytes:
    return header(b"SNDLROWS", 1, 0, b"") + block(len(rows), b"".join(rows)) + block(0, struct.pack("<Q", len(rows)))


def delta(generation: int, sequence: int, rows: list[bytes], removed: list[int]) -> bytes:
    content = header(b"SNDLDLTA", generation, sequence, struct.pack("<QQQ", 1, EPOCHS[sequence - 1], EPOCHS[sequence]))
    content += block(len(rows), b"".join(rows))
    content += block(1 << 31 | len(removed), struct.pack(f"<{len(removed)}Q", *removed))
    return content + block(0, struct.pack("<QQ", len(rows), len(removed)))


def write(name: str, content: bytes) -> dict:
    (HERE / name).write_bytes(content)
    return {"name": name, "bytes": len(content), "crc32c": crc32c(content)}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    full = [row(1, 3, 2, 2, 0.5, 0.25), row(2, 1, 1, 1, -1.0, 0.0), row(3, 9, 4, 5, 8.0, 1.0)]
    first = [row(1, 4, 5, 3, 1.5, 0.5), row(4, 1, 6, 1, 4.0, -2.0)]
    second = [row(2, 1, 7, 1, 7.0, 0.0)]
    momentum = {"momentum": {"lr": 0.5, "momentum": 0.5, "l2": 0.0}}
    tables = [
        {
            "name": "t",
            "file": write("g1-0.table", table(full)),
            "rows": 3,
            "pushes": 4,
            "seed": 0,
            "budget_bytes": None,
            "blocks": [{"dims": 1, "init": "zero", "optimizer": momentum}],
            "epoch": EPOCHS[0],
        }
    ]
    deltas = []
    for sequence, rows, removed, table_rows, pushes in [(1, first, [2], 3, 6), (2, second, [4], 3, 7)]:
        generation = sequence + 1
        change = {
            "name": "t",
            "file": write(f"g{generation}-0.delta", delta(generation, sequence, rows, removed)),
            "rows": len(rows),
            "removed": len(removed),
            "table_rows": table_rows,
            "pushes": pushes,
            "since": EPOCHS[sequence - 1],
            "epoch": EPOCHS[sequence],
        }
        blob = write(f"g{generation}-1.blob", f"delta {sequence}".encode())
        deltas.append({"generation": generation, "tables": [change], "blobs": [{"name": "note", "file": blob}]})
    blob = write("g1-1.blob", b"full")
    manifest = {
        "format": "sanderling-checkpoint",
        "version": 2,
        "generation": 3,
        "tables": tables,
        "blobs": [{"name": "note", "file": blob}],
        "base": 1,
        "deltas": deltas,
    }
    body = json.dumps(manifest, indent=2)
    crc = crc32c(body.encode())
    (HERE / "manifest.json").write_text(f'{{"manifest_crc32c":"{crc:08x}",\n"manifest":{body}}}\n')


main()
