"""The same windows and sessions once more, in plain Python over lists, to compare with."""

from collections import defaultdict

MINUTE_MS = 60_000


def alerts(minutes, usual, at):
    """Return {(rule, instance, time in ms): state} of all windows that have an event."""
    windows = defaultdict(lambda: {"requests": 0, "errors": 0, "starts": 0, "latency_ms": []})
    for minute in minutes:
        events = [(minute.at, name, value) for name, _, value in minute.metrics]
        events += [(at_ms, "starts", message == "started") for at_ms, _, message in minute.lines]
        for at_ms, name, value in events:
            newest = at_ms - at_ms % (5 * MINUTE_MS)
            for start in (newest - 5 * MINUTE_MS, newest):
                window = windows[minute.instance, start]
                if name == "latency_ms":
                    window[name].append(value)
                elif name == "disk_percent":
                    window[name] = max(value, window.get(name, 0))
                else:
                    window[name] += value
    found = {}
    for (instance, start), window in windows.items():
        hour = f"{start // 3_600_000 % 24:02}"
        latency, requests = window["latency_ms"], window["requests"]
        active = {
            "crash-loop": window["starts"] >= at.starts,
            "high-latency": sum(latency) > at.latency_ms * len(latency),
            "disk-full": window.get("disk_percent", 0) > at.disk_percent,
            "failing-requests": 100 * window["errors"] > at.errors_percent * requests,
            "no-traffic": bool(latency) and 100 * requests < at.traffic_percent * usual[hour],
        }
        for rule, is_active in active.items():
            state = "firing" if is_active else "resolved"
            found[rule, instance, start + 10 * MINUTE_MS] = state
    return found


def incidents(minutes, at):
    """Return the set of (instance, since, until, lines)."""
    bad = defaultdict(list)
    for minute in minutes:
        for at_ms, level, message in minute.lines:
            if level == "ERROR" or message == "started":
                bad[minute.instance].append(at_ms)
    found = set()
    for instance, times in bad.items():
        times.sort()
        first = 0
        for number in range(1, len(times) + 1):
            if number == len(times) or times[number] - times[number - 1] > 5 * MINUTE_MS:
                if number - first >= at.incident_lines:
                    found.add((instance, times[first], times[number - 1], number - first))
                first = number
    return found
