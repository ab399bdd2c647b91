"""Writer of TensorBoard event files for scalars, without a dependency on the tensorboard package.

Format: TFRecord (length, masked CRC-32C of the length, data, masked CRC-32C of the data) of tensorflow.Event (wall_time
= 1, step = 2, file_version = 3, summary = 5) with Summary.Value (tag = 1, simple_value = 2), encoded as protobuf.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class EventFile:
    """An open event file; a directory may hold several."""

    def __init__(self, directory: Path) -> None:
        """Create a new file in the directory, which is made if it is missing."""
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.path = directory / name
        self._file: BinaryIO = self.path.open("ab")
        self._write(_event(time.time()) + _field(3, _BYTES) + _sized(b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Append an event with one value per tag, and flush it."""
        summary = b""
        for tag, value in values.items():
            entry = _field(1, _BYTES) + _sized(tag.encode()) + _field(2, _FIXED32) + struct.pack("<f", value)
            summary += _field(1, _BYTES) + _sized(entry)
        self._write(_event(time.time()) + _field(2, _VARINT) + _varint(step) + _field(5, _BYTES) + _sized(summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))
        self._file.flush()


def _event(wall_time_s: float) -> bytes:
    return _field(1, _FIXED64) + struct.pack("<d", wall_time_s)


def _field(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _crc_table() -> list[int]:
    """Return the byte table of CRC-32C (Castagnoli polynomial, reflected)."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord: rotated right by 15 bits, plus a constant; 4 bytes, little-endian."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
