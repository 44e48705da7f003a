"""Use a share of one processor: ``python -m bench.http.burn SHARE``."""

from __future__ import annotations

import sys
import time

PERIOD_S = 0.01

if __name__ == "__main__":
    share = float(sys.argv[1])
    while True:
        began = time.perf_counter()
        while time.perf_counter() - began < PERIOD_S * share:
            pass
        if share < 1:
            time.sleep(PERIOD_S * (1 - share))
