"""An evening of a shop, made of a seed: who looks at what, who orders, and what arrives late.

It knows no Kafka. ``evening`` returns what happened in the order in which it arrives, which is not
the order in which it happened: for a quarter of an hour the app has no network, keeps its orders,
and sends them later. Some orders are sent twice.
"""

import math
import random
from dataclasses import dataclass
from datetime import datetime, timedelta

PRODUCTS = {  # name: price in cents, how popular
    "Desk lamp": (4900, 9),
    "Wool blanket": (7900, 7),
    "Oak stool": (11900, 4),
    "Tea pot": (3200, 8),
    "Notebook": (1400, 12),
    "Wall clock": (5600, 3),
    "Linen apron": (3900, 5),
    "Candle": (1900, 10),
}
MINUTES = 180
NEWSLETTER = 65  # minutes after the beginning: many come at the same time
NO_NETWORK = range(105, 120)  # orders of the app wait until its end


@dataclass(frozen=True)
class Event:
    """An event: ``at`` is when it happened, ``arrives`` when it reaches the shop."""

    topic: str
    at: datetime
    arrives: datetime
    visitor: str
    page: str = ""  # of a visit: home, product, cart
    order: str = ""
    product: str = ""
    cents: int = 0

    def value(self):
        """Return the value of its record."""
        about = ("order", "product", "cents") if self.topic == "shop.orders" else ("page",)
        at = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"visitor": self.visitor, "at": at, **{name: getattr(self, name) for name in about}}


def visitors_in(minute, dice):
    """Return how many come in a minute: an evening that swells and ebbs, and a newsletter."""
    swell = 42 + 33 * math.sin(math.pi * minute / MINUTES)
    since = minute - NEWSLETTER
    return round(
        (swell + (130 * math.exp(-since / 9) if since >= 0 else 0)) * dice.uniform(0.8, 1.2)
    )


def evening(seed, begin):
    """Return the events of an evening that begins at ``begin``, in the order of their arrival."""
    dice = random.Random(seed)
    names, weights = list(PRODUCTS), [popular for _, popular in PRODUCTS.values()]
    events, number = [], 0
    for minute in range(MINUTES):
        for _ in range(visitors_in(minute, dice)):
            number += 1
            at = begin + timedelta(minutes=minute, seconds=dice.uniform(0, 60))
            product = dice.choices(names, weights)[0]
            events += a_visit(f"v{number:05}", at, product, begin, dice)
    return sorted(events, key=lambda event: event.arrives)


def a_visit(visitor, at, product, begin, dice):
    """Yield what a visitor does: look around, perhaps fill the cart, perhaps order."""
    is_seen = dice.random() > 0.06  # others block the counting of visits, but their orders count
    for page, goes_on in (("home", 0.62), ("product", 0.45), ("cart", 0.55)):
        if is_seen:
            arrives = at + timedelta(seconds=dice.uniform(0, 2))
            yield Event("shop.visits", at, arrives, visitor, page=page)
        if dice.random() > goes_on:
            return
        at += timedelta(seconds=dice.uniform(8, 120))
    if dice.random() < 0.05:
        at += timedelta(minutes=dice.uniform(20, 45))  # they sleep on it
    arrives = at + timedelta(seconds=dice.uniform(0, 2))
    if (at - begin) // timedelta(minutes=1) in NO_NETWORK and dice.random() < 0.75:
        back = begin + timedelta(minutes=NO_NETWORK.stop)
        arrives = back + timedelta(seconds=dice.uniform(0, 300))
    name, cents = f"o-{visitor[1:]}", PRODUCTS[product][0] * dice.choice((1, 1, 1, 2))
    order = Event("shop.orders", at, arrives, visitor, order=name, product=product, cents=cents)
    yield order
    if dice.random() < 0.04:  # no answer in time: the app sends the order again
        again = arrives + timedelta(seconds=dice.uniform(5, 90))
        yield Event("shop.orders", at, again, visitor, order=name, product=product, cents=cents)
