"""The compiled extension (sources in ``src/native``)."""

from typing_extensions import Buffer

def walk_records(
    body: Buffer, position: int, first: int, last: int, /
) -> tuple[int, int, int, int, int, int]:
    """Check the records ``first`` to ``last`` of a batch, up to one that needs a closer look.

    Args:
        body: the records of a batch, decompressed.
        position: where record ``first`` begins.

    Returns:
        The position and the index of the next record; the largest timestamp delta that is not
        negative (-1: none); the smallest and the largest negative one, in zigzag (0: none); and the
        number of records without a key.
    """
