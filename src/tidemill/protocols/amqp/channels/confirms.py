"""The confirms of a channel: basic.ack and basic.nack, as few as possible.

The engine reports messages in the order in which they are on disk, which is not always the order of
their tags. An acknowledgement with ``multiple`` means all messages up to a tag, so it is used for
the part without gaps. Knows tags only.
"""

from __future__ import annotations

from tidemill.protocols.amqp.codec import hot
from tidemill.protocols.amqp.wire import Wire


class Confirms:
    """Numbers the messages of a channel, and confirms them."""

    def __init__(self, number: int, wire: Wire) -> None:
        self._number = number
        self._wire = wire
        self._last = 0
        self._lowest = 1
        """The lowest tag that is not settled."""
        self._settled: set[int] = set()
        """Settled tags above ``_lowest``."""

    def begin(self) -> int:
        """Return the tag of the next message."""
        self._last += 1
        return self._last

    def settle(self, ok: list[int], refused: list[int]) -> None:
        """Confirm messages: those that are on disk, and those that were refused.

        Messages with the tag 0 were published before confirm.select, and are not confirmed.
        """
        if 0 in ok or 0 in refused:
            ok, refused = [tag for tag in ok if tag], [tag for tag in refused if tag]
        sent = [hot.settled(self._number, tag, ok=False, multiple=False) for tag in refused]
        self._settled.update(refused)
        first = self._lowest
        if len(ok) == 1 and ok[0] == first and not self._settled:
            self._lowest = first + 1
            sent.append(hot.settled(self._number, first, ok=True, multiple=False))
        elif ok:
            self._settled.update(ok)
            end = self._advance()
            below = [tag for tag in ok if tag < end]
            if below:
                # Not ``end - 1``: clients ignore a tag that was confirmed before.
                highest, multiple = max(below), len(below) > 1
                sent.append(hot.settled(self._number, highest, ok=True, multiple=multiple))
            sent += [
                hot.settled(self._number, tag, ok=True, multiple=False) for tag in ok if tag >= end
            ]
        else:
            self._advance()
        if sent:
            self._wire.send([b"".join(sent)])

    def _advance(self) -> int:
        end, settled = self._lowest, self._settled
        while end in settled:
            settled.remove(end)
            end += 1
        self._lowest = end
        return end
