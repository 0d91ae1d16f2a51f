"""Small inline SVG panels: one style, colours as CSS variables, identifiers that never collide on a page.

Text stays text (selectable, readable by screen readers, set in the page's font). Colours are written as
sentinels and replaced by CSS variables, so that one picture serves light, dark and print.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

INK, MUTED, GRID, SHADE, PAPER = "#000101", "#000102", "#000103", "#000104", "#000105"
SERIES = ("#000201", "#000202", "#000203", "#000204", "#000205", "#000206")
BLUE, ORANGE, GREEN = SERIES[0], SERIES[1], SERIES[2]
MARKERS = ("o", "s", "D", "^", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 3)))

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    SHADE: "--shade",
    PAPER: "--card",
    **{colour: f"--c{i}" for i, colour in enumerate(SERIES, 1)},
}
_WIDTH, _HEIGHT = 360.0, 258.0
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Panel:
    """One picture of a figure."""

    title: str
    svg: str


@dataclass(frozen=True)
class Figure:
    """Panels with one caption and the numbers behind them."""

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    rows: tuple[dict[str, Any], ...] = field(repr=False)
    """What is plotted, one dictionary per mark, for the CSV download."""
    more: tuple[Panel, ...] = ()
    """Further panels, folded away on the page."""
    more_title: str = ""


def power_of_ten(exponent: float) -> str:
    """Short label of 10**exponent.

    >>> power_of_ten(-1), power_of_ten(2), power_of_ten(-7)
    ('0.1', '100', '10⁻⁷')
    """
    k = round(exponent)
    if -2 <= k <= 3:
        return f"{10.0**k:g}"
    return "10" + str(k).translate(_SUPERSCRIPT)


def spread(positions: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Positions moved apart to at least ``gap``, order kept, inside [low, high] where that is possible.

    >>> [round(v, 2) for v in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks: list[list[float]] = []  # centre, count: a block of labels set solid around the mean of its wishes
    for i in order:
        blocks.append([min(max(positions[i], low), high), 1])
        while len(blocks) > 1:
            (c0, n0), (c1, n1) = blocks[-2], blocks[-1]
            if c1 - (n1 - 1) * gap / 2 - (c0 + (n0 - 1) * gap / 2) >= gap - 1e-12:
                break
            n = n0 + n1
            centre = (c0 * n0 + c1 * n1) / n
            half = (n - 1) * gap / 2
            centre = max(min(centre, high - half), low + half)
            blocks[-2:] = [[centre, n]]
    out = [0.0] * len(positions)
    flat = [c + (k - (n - 1) / 2) * gap for c, n in blocks for k in range(int(n))]
    for i, value in zip(order, flat, strict=True):
        out[i] = value
    return out


class Canvas:
    """One pair of axes with the page's style; :meth:`svg` returns the finished element."""

    def __init__(self, *, x_title: str, y_title: str, note: str = "", margin: float = 64.0) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as MplFigure

        self._figure = MplFigure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72)
        FigureCanvasSVG(self._figure)
        left, bottom, top = 44.0, 42.0, 26.0
        self.ax = self._figure.add_axes(
            (
                left / _WIDTH,
                bottom / _HEIGHT,
                (_WIDTH - left - margin) / _WIDTH,
                (_HEIGHT - bottom - top) / _HEIGHT,
            )
        )
        ax = self.ax
        ax.set_facecolor("none")
        self._figure.patch.set_alpha(0.0)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            ax.spines[side].set_color(MUTED)
        ax.tick_params(colors=MUTED, labelsize=11, length=3, width=0.8)
        ax.grid(True, color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)
        self._figure.text(6 / _WIDTH, 1 - 11 / _HEIGHT, y_title, color=INK, fontsize=11.5, va="center")
        if note:
            self._figure.text(
                1 - 4 / _WIDTH, 1 - 11 / _HEIGHT, note, color=MUTED, fontsize=10.5, va="center", ha="right"
            )
        self._figure.text(
            (left + (_WIDTH - left - margin) / 2) / _WIDTH,
            9 / _HEIGHT,
            x_title,
            color=INK,
            fontsize=11.5,
            ha="center",
            va="center",
        )

    def log_y(self, low: float, high: float) -> None:
        """Logarithmic y from ``low`` to ``high``, at most five labelled decades."""
        self.ax.set_yscale("log")
        self.ax.set_ylim(low, high)
        self._decades(self.ax.yaxis, low, high)

    def log_x(self, low: float, high: float) -> None:
        """Logarithmic x with labelled decades."""
        self.ax.set_xscale("log")
        self.ax.set_xlim(low, high)
        self._decades(self.ax.xaxis, low, high)

    def log_x_at(self, values: Sequence[float], labels: Sequence[str] | None = None) -> None:
        """Logarithmic x labelled at ``values`` only (thinned where labels would touch)."""
        from matplotlib.ticker import NullLocator

        ax = self.ax
        ax.set_xscale("log")
        low, high = min(values), max(values)
        pad = 1.5 if low == high else (high / low) ** 0.1
        ax.set_xlim(low / pad, high * pad)
        texts = list(labels) if labels is not None else [f"{v:g}" for v in values]
        span = math.log(high * pad**2 / low)
        pixels = _WIDTH - 110.0
        keep: list[int] = []
        for i in sorted(range(len(values)), key=lambda i: -values[i]):
            if keep:
                apart = pixels * (math.log(values[keep[-1]]) - math.log(values[i])) / span
                if apart < 3.6 * (len(texts[i]) + len(texts[keep[-1]])) + 8:
                    continue
            keep.append(i)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks([values[i] for i in keep], [texts[i] for i in keep])

    def _decades(self, axis: Any, low: float, high: float) -> None:
        from matplotlib.ticker import NullLocator

        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / 6))
        ticks = [k for k in range(first, last + 1) if (k - last) % step == 0]
        if len(ticks) < 2:  # less than two decades: label 1, 2, 5 as well
            values = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
            values = [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
            axis.set_ticks(values, [f"{v:g}" for v in values])
        else:
            axis.set_ticks([10.0**k for k in ticks], [power_of_ten(k) for k in ticks])
        axis.set_minor_locator(NullLocator())

    def labels_right(self, wishes: Sequence[tuple[float, str, str]]) -> None:
        """Direct labels (y in data, text, colour) in the right margin, moved apart, with leaders."""
        ax = self.ax
        to_axes = ax.transData + ax.transAxes.inverted()
        x_any = ax.get_xlim()[1]
        low, high = ax.get_ylim()
        clipped = [min(max(y, low), high) for y, _, _ in wishes]
        fractions = [float(to_axes.transform((x_any, y))[1]) for y in clipped]
        gap = 13.0 / (_HEIGHT - 68)
        for y0, y1, (_, text, colour) in zip(fractions, spread(fractions, gap), wishes, strict=True):
            ax.plot(
                [1.005, 1.03], [y0, y1], transform=ax.transAxes, color=colour, linewidth=0.8, clip_on=False
            )
            ax.text(
                1.045,
                y1,
                text,
                transform=ax.transAxes,
                color=colour,
                fontsize=11,
                va="center",
                parse_math=False,
            )

    def svg(self, id: str, alt: str) -> str:
        """The panel as an SVG element whose identifiers start with ``id``."""
        import matplotlib

        buffer = io.StringIO()
        style: Any = {"svg.fonttype": "none", "svg.hashsalt": id, "path.simplify": True}
        with matplotlib.rc_context(style):
            self._figure.savefig(
                buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
        return _clean(buffer.getvalue(), id, alt)


def _clean(svg: str, id: str, alt: str) -> str:
    """Strip what a page does not need, prefix identifiers, set colours and subscripts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)  # would style the whole page
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"\s+xmlns(:xlink)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    used = dict.fromkeys(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", svg))
    names = {old: f"{id}-{k}" for k, old in enumerate(used)}
    svg = re.sub(r" id=\"([^\"]+)\"", lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", svg)
    svg = re.sub(r"(href=\"#|url\(#)([^\")]+)", lambda m: m[1] + names[m[2]], svg)
    svg = re.sub(r"<path(?![^>]*\sd=)[^>]*/>", "", svg)  # a line without points
    svg = re.sub(r"<defs>\s*</defs>", "", svg)
    svg = _compact(svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"font:\s*([\d.]+)px[^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"font-family:[^;\"]*;?", "", svg)
    svg = re.sub(r"(>)([^<>]*_\{[^<>]*)(<)", lambda m: m.group(1) + _subscripts(m.group(2)) + m.group(3), svg)
    svg = re.sub(r"(\d+\.\d{2})\d+(?=[^<>]*>)", r"\1", svg)  # in attributes, not in what is read
    opening = (
        f'<svg class="fig" role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1).strip()


def _compact(svg: str) -> str:
    """The same picture in fewer bytes: a page holds hundreds of panels.

    >>> _compact('<g><g id="a"><path d="M 0 1 \\nL 2 3 " style="fill: none; stroke: red"/></g></g>')
    '<g id="a"><path d="M0 1L2 3" style="fill:none;stroke:red"/></g>'
    """
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r" transform=\"rotate\(-?0 [^)]*\)\"", "", svg)
    svg = re.sub(
        r" d=\"([^\"]*)\"", lambda m: ' d="' + re.sub(r"\s*([A-Za-z])\s*", r"\1", m[1].strip()) + '"', svg
    )
    svg = re.sub(
        r" style=\"([^\"]*)\"", lambda m: ' style="' + re.sub(r"\s*([:;,])\s*", r"\1", m[1]) + '"', svg
    )
    svg = re.sub(r"<path d=\"[^\"]*\" style=\"fill:none(;opacity:0)?\"/>", "", svg)  # invisible backgrounds
    out: list[str] = []
    open_: list[bool] = []  # for every <g> that is open: whether it says anything
    for token in re.split(r"(<g(?: [^>]*)?>|</g>)", svg):
        if token.startswith("<g") and token.endswith("/>"):
            continue  # an empty group
        if token[:3] in ("<g>", "<g "):
            open_.append(token != "<g>")
            if not open_[-1]:
                continue
        elif token == "</g>" and not open_.pop():
            continue
        out.append(token)
    return "".join(out)


def _subscripts(text: str) -> str:
    """SVG text with ``B_{exact}`` set as a subscript (baseline-shift is not drawn by every browser)."""
    text = re.sub(r"\b([A-Za-zΑ-ω])(?=_\{)", r'<tspan style="font-style:italic">\1</tspan>', text)
    return re.sub(
        r"_\{([^}]*)\}([^_]*)",
        lambda m: (
            f'<tspan dy="0.3em" style="font-size:75%">{m.group(1)}</tspan>'
            + (f'<tspan dy="-0.225em">{m.group(2)}</tspan>' if m.group(2) else "")
        ),
        text,
    )
