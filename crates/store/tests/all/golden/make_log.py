"""Writes `log/`: two segments of a delta log, byte by byte as docs/log-format.md says.

The table `t`, number 5, has a weight and a momentum per row, and holds afterwards:

    group 8   1: 0.5, 0.25    2: -1, 0     3: 8, 1
    group 9   1: 1.5, 0.5     3: 8, 1      4: 4, -2     without 2
    group 10  1: 1.5, 0.5     3: 7, 0      4: 4, -2

After group 10 there is the begin of a group that was not finished. Run `python make_log.py` beside it.
"""

import struct
from pathlib import Path

HERE = Path(__file__).parent / "log"
LOG = 0x5EED
TABLES, ROWS, REMOVED, PUSHES, COMMIT = 1, 2, 3, 4, 5
TABLE = 5


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def header(number: int, previous: int, previous_bytes: int) -> bytes:
    checked = struct.pack("<IIIQQQQ", 1, 56, 0, LOG, number, previous, previous_bytes)
    return b"SNDLDLOG" + struct.pack("<I", crc32c(checked)) + checked


def record(kind: int, table: int, group: int, epoch: int, payload: bytes) -> bytes:
    checked = struct.pack("<IIIQQ", len(payload), kind, table, group, epoch) + payload
    return struct.pack("<I", crc32c(checked)) + checked


def row(key: int, frequency: int, last_use: int, version: int, weight: float, momentum: float) -> bytes:
    return struct.pack("<QIIIff", key, frequency, last_use, version, weight, momentum)


def rows(group: int, epoch: int, clock: int, *each: bytes) -> bytes:
    payload = struct.pack("<QIIII", clock, 1, 1, len(each), 0) + b"".join(each)
    return record(ROWS, TABLE, group, epoch, payload)


def removed(group: int, epoch: int, *keys: int) -> bytes:
    payload = struct.pack("<II", len(keys), 0) + struct.pack(f"<{len(keys)}Q", *keys)
    return record(REMOVED, TABLE, group, epoch, payload)


def group(number: int, *records: bytes) -> bytes:
    end = struct.pack("<Q", len(records))
    return b"".join(records) + record(COMMIT, 0, number, 1_700_000_000_000 + number, end)


def main() -> None:
    HERE.mkdir(exist_ok=True)
    list_of_tables, history = b"the tables", b"the pushes"
    first = header(3, 2, 4711)
    first += group(
        8,
        record(TABLES, 0, 8, 0, list_of_tables),
        rows(8, 100, 4, row(1, 3, 2, 2, 0.5, 0.25), row(2, 1, 1, 1, -1.0, 0.0), row(3, 9, 4, 5, 8.0, 1.0)),
        record(PUSHES, 0, 8, 0, history),
    )
    first += group(
        9,
        rows(9, 101, 6, row(1, 4, 5, 3, 1.5, 0.5), row(4, 1, 6, 1, 4.0, -2.0)),
        removed(9, 101, 2),
    )
    # A group that failed left these bytes, which do not count: the next segment says so.
    (HERE / "000000000003.log").write_bytes(first + b"left")
    second = header(4, 3, len(first))
    second += group(
        10,
        record(TABLES, 0, 10, 0, list_of_tables),
        rows(10, 102, 7, row(3, 10, 7, 6, 7.0, 0.0)),
    )
    second += rows(11, 103, 8, row(1, 5, 8, 4, 9.0, 9.0))
    (HERE / "000000000004.log").write_bytes(second)


main()
