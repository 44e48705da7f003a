"""A city's card payments, and the fraud among them. The rules must not import this package.

Customers, terminals and the first three scenarios are those of the simulator in "Reproducible
Machine Learning for Credit Card Fraud Detection - Practical Handbook" (Le Borgne, Siblini,
Lebichot, Bontempi; chapter 3), with fewer customers and a denser fraud. What differs is marked
*ours*.
"""

from payments.simulated import (
    AMOUNT,
    SCENARIOS,
    SMALL_THEN_LARGE,
    STOLEN,
    TERMINAL,
    Bank,
    Card,
    Payment,
    generate,
)

__all__ = [
    "AMOUNT",
    "SCENARIOS",
    "SMALL_THEN_LARGE",
    "STOLEN",
    "TERMINAL",
    "Bank",
    "Card",
    "Payment",
    "generate",
]
