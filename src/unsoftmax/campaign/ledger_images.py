"""A ledger's file and its WAL put together in memory, as SQLite would, and in other ways.

To open a file with a WAL, SQLite must be able to write beside it; an image in memory needs
nothing of the kind. And where SQLite gives up, an image may be mended:

- *its header, or its first page*, which holds the header and where the tables begin, may be those
  of an empty ledger: all ledgers have the same tables, on the same pages;
- *the WAL's pages* may all be taken, where SQLite ignores those behind a flipped bit.

A page in the wrong place does no harm: every row has a checksum that says its table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_HEADER, _FRAME = 100, 24  # bytes: of a file, and before each page of a WAL


@dataclass(frozen=True, slots=True)
class _Frame:
    """A page in a WAL."""

    number: int
    """Of the page, from 1."""
    ends: bool
    """Whether it is the last one of a commit."""
    salts: bytes
    """The same in all of a WAL, but for what is left of an earlier one."""
    sound: bool
    """Whether SQLite takes it: it, and all before it, match their checksums."""
    page: bytes


def images(main: bytes, wal: bytes, fresh: bytes) -> Iterator[bytes]:
    """Yield a ledger's file as SQLite reads it, then mended in all ways; for reading alone.

    Parameters
    ----------
    main, wal : bytes
        The file and its WAL; empty where they are missing.
    fresh : bytes
        The file of an empty ledger.
    """
    size = _page_size(main) or _page_size(fresh)
    every = list(_frames(wal, size))
    sound = _committed([frame for frame in every if frame.sound])
    yield _readable(_overlaid(main, sound, size))
    # behind its end, a file that was cut short is as it was made
    main += fresh[len(main) :]
    for frames in (sound, _committed(every)):
        pages = _overlaid(main, frames, size)
        header = fresh[:28] + (len(pages) // size).to_bytes(4, "big") + fresh[32:_HEADER]
        for mended in (b"", header, header + fresh[_HEADER:size]):
            yield _readable(mended + pages[len(mended) :])


def _readable(image: bytes) -> bytes:
    """Say in the header that no WAL belongs to it: in memory there is none."""
    return image[:18] + b"\x01\x01" + image[20:]


def _page_size(main: bytes) -> int:
    """Return what a file says that its pages are long; 0 where that is impossible."""
    size = int.from_bytes(main[16:18], "big")
    return size if size >= 512 and size & (size - 1) == 0 else 0


def _overlaid(main: bytes, frames: list[_Frame], size: int) -> bytes:
    """Put a WAL's pages into their places; one that is too far out has a flipped bit."""
    image = bytearray(main)
    most = len(main) // size + len(frames)
    for frame in frames:
        if 0 < frame.number <= most:
            start = (frame.number - 1) * size
            image.extend(bytes(max(0, start - len(image))))
            image[start : start + size] = frame.page
    return bytes(image)


def _committed(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames of the latest WAL, up to its last commit."""
    [(salts, _)] = Counter(frame.salts for frame in frames).most_common(1) or [(b"", 0)]
    frames = [frame for frame in frames if frame.salts == salts]
    last = max((k for k, frame in enumerate(frames) if frame.ends), default=-1)
    return frames[: last + 1]


def _frames(wal: bytes, size: int) -> Iterator[_Frame]:
    """Yield a WAL's pages in order."""
    order = ">u4" if wal[3:4] == b"\x83" else "<u4"
    total = _checksum(wal[:24], order, (0, 0))
    sound = _stored(wal[24:32]) == total and wal[:3] == b"\x37\x7f\x06"
    for start in range(32, len(wal) - size - _FRAME + 1, size + _FRAME):
        head, page = wal[start : start + _FRAME], wal[start + _FRAME : start + _FRAME + size]
        if sound:
            total = _checksum(head[:8] + page, order, total)
        salts = head[8:16]
        sound = sound and _stored(head[16:]) == total and salts == wal[16:24]
        yield _Frame(int.from_bytes(head[:4], "big"), any(head[4:8]), salts, sound, page)


def _stored(checksum: bytes) -> tuple[int, int]:
    return int.from_bytes(checksum[:4], "big"), int.from_bytes(checksum[4:], "big")


def _checksum(data: bytes, order: str, total: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of a WAL, going on from another one."""
    one, two = total
    words = np.frombuffer(data, dtype=order).tolist()
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
