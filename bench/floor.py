"""The floor: read a file in chunks, inflate it if need be, and do nothing with it.

python -m bench.floor FILE
"""

import sys

from isal import igzip

CHUNK = 1 << 22


def main() -> None:
    path = sys.argv[1]
    nbytes = 0
    with igzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            nbytes += len(chunk)
    print(nbytes)


if __name__ == "__main__":
    main()
