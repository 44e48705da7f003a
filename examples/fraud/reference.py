"""The same rules once more, in plain Python over lists, to compare the pipeline's alerts with.

It shares no line with the pipeline but the thresholds.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from fractions import Fraction

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SMALL_CENTS = 100


class Reference:
    """The alerts of each rule, as sets of their ids."""

    def __init__(self, bank, chargebacks):
        """Args: a bank, and its chargebacks as (time, terminal)."""
        self.cards = {card.id: card for card in bank.cards}
        self.payments = bank.payments
        self.by_card = defaultdict(list)
        for payment in bank.payments:
            self.by_card[payment.card].append(payment)
        self.complaints = defaultdict(list)
        for reported, terminal in sorted(chargebacks):
            self.complaints[terminal].append(reported)

    def alerts(self, at):
        return {
            "amount": self.amount(at.limit_cents, at.times_usual),
            "velocity": self.velocity(at.day_times_usual),
            "small-then-large": self.small_then_large(at.large_cents),
            "travel": self.travel(at.speed_kmh),
            "terminal": self.terminal(at.chargebacks),
        }

    def usual(self, payment):
        """Return what the holder usually paid when this payment was made."""
        return [cents for since, cents in self.cards[payment.card].usual if since <= payment.at][-1]

    def amount(self, limit, times):
        return {
            f"amount:{each.id}"
            for each in self.payments
            if each.cents > limit or each.cents > times * self.usual(each)
        }

    def velocity(self, times):
        found = set()
        for payments in self.by_card.values():
            starts = set()
            for each in payments:
                newest = each.at // (12 * HOUR_MS) * 12 * HOUR_MS
                starts |= {newest, newest - 12 * HOUR_MS}
            clock = [each.at for each in payments]
            for start in starts:
                day = payments[bisect_left(clock, start) : bisect_left(clock, start + DAY_MS)]
                if sum(each.cents for each in day) > times * max(map(self.usual, day)):
                    highest = max(day, key=lambda each: (each.cents, each.id))
                    found.add(f"velocity:{highest.id}:{start // 1000}")
        return found

    def pairs(self, within_ms):
        for payments in self.by_card.values():
            for number, second in enumerate(payments):
                for first in reversed(payments[:number]):
                    if second.at - first.at > within_ms:
                        break
                    yield first, second

    def small_then_large(self, large):
        return {
            f"small-then-large:{second.id}:{first.id}"
            for first, second in self.pairs(60_000)
            if first.cents < SMALL_CENTS and second.cents > large
        }

    def travel(self, speed):
        found = set()
        for first, second in self.pairs(6 * HOUR_MS):
            card = self.cards[second.card]
            reachable = max(Fraction(100), Fraction((second.at - first.at) * speed, HOUR_MS))
            if squared(first, second) > reachable**2:
                far, near = second, first
                if squared(first, card) > squared(second, card):
                    far, near = first, second
                found.add(f"travel:{far.id}:{near.id}")
        return found

    def terminal(self, least):
        found = set()
        for each in self.payments:
            reported = self.complaints[each.terminal]
            since = bisect_left(reported, each.at - 7 * DAY_MS)
            if bisect_right(reported, each.at) - since >= least:
                found.add(f"terminal:{each.id}")
        return found


def squared(one, other):
    return (one.x - other.x) ** 2 + (one.y - other.y) ** 2


def suspicious(alerts):
    """The payments that some alert names."""
    return {alert.split(":")[1] for alert in alerts}


def quality(found, fraud):
    """Return precision and recall."""
    hits = len(found & fraud)
    return hits / max(1, len(found)), hits / max(1, len(fraud))


def f1(found, fraud):
    precision, recall = quality(found, fraud)
    return 2 * precision * recall / max(1e-9, precision + recall)


def fit(reference, fraud, start):
    """Return the thresholds with the highest F1, changed one at a time until none gets better."""
    choices = {
        "limit_cents": (15_000, 18_000, 20_000, 22_000, 26_000, 32_000),
        "times_usual": (2, 3, 4, 5, 6, 8),
        "day_times_usual": (6, 8, 10, 12, 15, 20, 30),
        "large_cents": (2_000, 5_000, 7_500, 10_000, 15_000),
        "speed_kmh": (50, 100, 200, 400, 900),
        "chargebacks": (1, 2, 3, 4, 6),
    }
    rule_of = {
        "limit_cents": lambda at: ("amount", reference.amount(at.limit_cents, at.times_usual)),
        "times_usual": lambda at: ("amount", reference.amount(at.limit_cents, at.times_usual)),
        "day_times_usual": lambda at: ("velocity", reference.velocity(at.day_times_usual)),
        "large_cents": lambda at: ("small-then-large", reference.small_then_large(at.large_cents)),
        "speed_kmh": lambda at: ("travel", reference.travel(at.speed_kmh)),
        "chargebacks": lambda at: ("terminal", reference.terminal(at.chargebacks)),
    }
    best, found, score = start, reference.alerts(start), 0.0
    improved = True
    while improved:
        improved = False
        for name, values in choices.items():
            for value in values:
                at = best._replace(**{name: value})
                rule, alerts = rule_of[name](at)
                changed = {**found, rule: alerts}
                reached = f1(suspicious(set().union(*changed.values())), fraud)
                if reached > score:
                    best, found, score, improved = at, changed, reached, True
    return best


def fit_baseline(payments, fraud):
    """Return the one limit of an amount with the highest F1."""
    return max(
        range(1_000, 60_000, 500),
        key=lambda limit: f1({each.id for each in payments if each.cents > limit}, fraud),
    )
