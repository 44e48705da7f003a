"""Draw the days as an SVG, without a library: faults, and the alerts of each rule."""

from html import escape

FAULT, PLANNED, GOOD, FALSE, INK, GRID = (
    *("#fecaca", "#e5e7eb", "#0f766e", "#d97706", "#1f2937", "#d1d5db"),
)
LEFT, WIDTH, TOP, ROW = 190, 900, 70, 20


def text(x, y, words, size=12, anchor="start", weight="normal"):
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}'"
        f" font-weight='{weight}'>{escape(words)}</text>"
    )


def box(x, y, width, height, colour, note=""):
    title = f"<title>{escape(note)}</title>" if note else ""
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='2'"
        f" fill='{colour}'>{title}</rect>"
    )


def draw(file, service, alarms, false):
    """Write the picture.

    Args:
        file: its path.
        service: the service, with its faults.
        alarms: (rule, instance, first minute, last minute).
        false: those of them that are about no fault.
    """
    rows = sorted({alarm[:2] for alarm in alarms})
    bottom = TOP + len(rows) * ROW
    place = lambda minute: LEFT + minute / service.minutes * WIDTH  # noqa: E731
    parts = [text(20, 32, "Faults, and the alerts that they caused", 16, weight="600")]
    for number, (rule, instance) in enumerate(rows):
        y = TOP + number * ROW
        new = number == 0 or rows[number - 1][0] != rule
        if new:
            parts.append(text(20, y + 14, rule))
            parts.append(f"<path d='M20 {y}H{LEFT + WIDTH}' stroke='{GRID}'/>")
        parts.append(text(LEFT - 10, y + 14, instance, 11, "end"))
        for fault in service.faults:
            if instance in fault.where:
                x = place(fault.first)
                colour = PLANNED if fault.is_planned else FAULT
                parts.append(box(x, y + 1, place(fault.end) - x, ROW - 2, colour, fault.kind))
        for alarm in alarms:
            if alarm[:2] == (rule, instance):
                x = place(alarm[2])
                colour = FALSE if alarm in false else GOOD
                parts.append(box(x, y + 6, max(3, place(alarm[3] + 5) - x), ROW - 12, colour))
    for hour in range(0, service.minutes // 60 + 1, 12):
        x = place(hour * 60)
        parts.append(f"<path d='M{x:.1f} {TOP}V{bottom}' stroke='{GRID}' stroke-dasharray='2 3'/>")
        label = f"day {hour // 24 + 1}" if hour % 24 == 0 else "12:00"
        if hour * 60 < service.minutes:
            parts.append(text(x + 3, TOP - 8, label, 11))
    parts.append(f"<path d='M20 {bottom}H{LEFT + WIDTH}' stroke='{GRID}'/>")
    legend = (
        (FAULT, "fault"),
        (PLANNED, "planned, silenced"),
        (GOOD, "alert"),
        (FALSE, "false alarm"),
    )
    for number, (colour, words) in enumerate(legend):
        x = LEFT + number * 150
        parts.append(box(x, bottom + 18, 22, 12, colour) + text(x + 30, bottom + 29, words))
    size = f"0 0 {LEFT + WIDTH + 20} {bottom + 50}"
    file.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='{size}' fill='{INK}'"
        f" font-family='system-ui, sans-serif'><rect width='100%' height='100%' fill='white'/>"
        f"{''.join(parts)}</svg>\n"
    )
