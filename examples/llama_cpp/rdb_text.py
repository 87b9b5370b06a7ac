#!/usr/bin/env python3
"""Prints one novel of an R data package as plain text, without R.

    rdb_text.py Rdata.rdb TITLE

An R lazy-load database is a row of objects, each a big-endian 32-bit length followed by that object
compressed with zlib. The objects read here are character vectors (R's serialization format 3), one
element per printed line, the first one the title. Lines of a paragraph are joined with spaces and
paragraphs end with an empty line, since the line breaks are those of a printed page.
"""
import struct
import sys
import zlib

CHARACTER_VECTOR = 16
STRING = 9


def objects(data):
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        yield stream.decompress(data[at + 4 :])
        at = len(data) - len(stream.unused_data)


def strings(blob):
    """The elements of one serialized character vector."""
    if blob[:2] != b"X\n":
        raise ValueError("not R's binary serialization")
    at = 2

    def integer():
        nonlocal at
        (value,) = struct.unpack_from(">i", blob, at)
        at += 4
        return value

    version = integer()
    at += 8  # versions of R that wrote it and that can read it
    if version >= 3:
        encoding_length = integer()
        at += encoding_length
    if integer() & 0xFF != CHARACTER_VECTOR:
        raise ValueError("not a character vector")
    for _ in range(integer()):
        if integer() & 0xFF != STRING:
            raise ValueError("an element is not a string")
        length = integer()
        yield blob[at : at + max(length, 0)].decode("utf-8")
        at += max(length, 0)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: rdb_text.py Rdata.rdb TITLE")
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    for blob in objects(data):
        lines = list(strings(blob))
        if not lines or lines[0].strip().upper() != sys.argv[2].upper():
            continue
        paragraph = []
        for line in lines + [""]:
            if line.strip():
                paragraph.append(line.strip())
            elif paragraph:
                print(" ".join(paragraph), end="\n\n")
                paragraph = []
        return
    sys.exit(f"rdb_text.py: no novel is called '{sys.argv[2]}'")


if __name__ == "__main__":
    main()
