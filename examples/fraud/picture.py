"""Draw the result as an SVG, without a library."""

from html import escape

OURS, BASE, INK, GRID = "#0f766e", "#d97706", "#1f2937", "#e5e7eb"
STYLE = "font-family='system-ui, sans-serif' fill='#1f2937'"


def text(x, y, words, size=13, anchor="start", weight="normal", fill=INK):
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}'"
        f" font-weight='{weight}' style='fill:{fill}'>{escape(words)}</text>"
    )


def bars(caught, left, top, width):
    """Return two bars for each scenario: how much of its fraud was found."""
    out = [text(left, top - 22, "Fraud that was found, seeds 2 to 6", 15, weight="600")]
    for number, (scenario, shares) in enumerate(caught.items()):
        y = top + number * 66
        out.append(text(left, y + 12, scenario))
        for line, (share, colour) in enumerate(zip(shares, (OURS, BASE), strict=True)):
            at = y + 19 + line * 17
            out.append(
                f"<rect x='{left}' y='{at}' width='{width}' height='14' rx='2' fill='{GRID}'/>"
                f"<rect x='{left}' y='{at}' width='{max(2, width * share):.1f}' height='14' rx='2'"
                f" fill='{colour}'/>"
            )
            out.append(text(left + width + 8, at + 12, f"{share:.0%}", 12))
    return out


def plane(rows, left, top, side):
    """Return a point for each seed: recall to the right, precision upwards."""
    out = [text(left, top - 22, "Each seed: precision and recall", 15, weight="600")]
    for step in range(5):
        share = step / 4
        x, y = left + share * side, top + side - share * side
        out.append(
            f"<path d='M{left} {y}h{side}M{x} {top}v{side}' stroke='{GRID}' fill='none'/>"
            + text(left - 8, y + 4, f"{share:.0%}", 11, "end")
            + text(x, top + side + 16, f"{share:.0%}", 11, "middle")
        )
    out.append(text(left + side / 2, top + side + 34, "recall", 12, "middle"))
    out.append(
        f"<g transform='translate({left - 46} {top + side / 2}) rotate(-90)'>"
        + text(0, 0, "precision", 12, "middle")
        + "</g>"
    )
    for seed, precision, recall, base_precision, base_recall in rows:
        for up, right, colour in (
            (precision, recall, OURS),
            (base_precision, base_recall, BASE),
        ):
            x, y = left + right * side, top + side - up * side
            filled = colour if seed != 1 else "white"
            out.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='6' fill='{filled}' stroke='{colour}'"
                " stroke-width='2' fill-opacity='0.8'/>"
            )
    return out


def draw(file, rows, caught):
    """Write the picture.

    Args:
        file: its path.
        rows: (seed, precision, recall, and both of the baseline) of each seed.
        caught: the share of fraud that was found, by the rules and by the baseline, by scenario.
    """
    parts = [*bars(caught, 30, 70, 300), *plane(rows, 460, 70, 252)]
    for x, colour, words in ((30, OURS, "five rules"), (130, BASE, "one limit for all")):
        parts.append(f"<circle cx='{x + 6}' cy='362' r='6' fill='{colour}'/>")
        parts.append(text(x + 18, 367, words))
    parts.append(
        f"<circle cx='292' cy='362' r='5' fill='white' stroke='{INK}' stroke-width='2'/>"
        + text(304, 367, "seed 1, fitted")
    )
    file.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 760 390' {STYLE}>"
        f"<rect width='760' height='390' fill='white'/>{''.join(parts)}</svg>\n"
    )
