"""Draws a dashboard of Grafana's: its panels where they stand on the page, in Grafana's dark colours.

A series is (name, times, values); a value that is missing is NaN.
"""
import io
import math
import re
import time

import matplotlib
import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.transforms import Affine2D
from PIL import Image

import grafana_units as units

# Pixels of a screen; of the picture, a seventh more.
DOTS = 115
NUM_COLORS = 128
WIDTH, MARGIN, HEADER, CELL, GAP, PADDING, LINE = 1400, 16, 92, 30, 8, 10, 18
PAGE, PANEL, BORDER, GRID, TEXT, DIM = "#111217", "#181b1f", "#2b2d33", "#2a2c31", "#ccccdc", "#8e8f99"
COLORS = {"green": "#73bf69", "yellow": "#fade2a", "blue": "#5794f2", "orange": "#ff9830", "red": "#f2495c",
          "purple": "#b877d9", "dark-green": "#37872d", "dark-yellow": "#e0b400", "dark-blue": "#1f60c4",
          "dark-orange": "#fa6400", "dark-red": "#c4162a", "dark-purple": "#8f3bb8", "super-light-green": "#c8f2c2",
          "super-light-yellow": "#fff899", "super-light-blue": "#c0d8ff", "super-light-orange": "#ffcb7d",
          "super-light-red": "#ffa6b0", "super-light-purple": "#deb6f2"}
PALETTE = list(COLORS.values())
# What Grafana takes where a panel says nothing.
STANDARD_STEPS = [{"value": None, "color": "green"}, {"value": 80, "color": "red"}]
HEAT = LinearSegmentedColormap.from_list("heat", ["#3a1f10", "#8a3a08", "#d9600f", "#fb9a4b", "#fee3c8"])

matplotlib.rcParams |= {"font.family": "DejaVu Sans", "text.parse_math": False, "axes.unicode_minus": False}


class Page:
    """A picture that is drawn on in pixels, from its upper left corner."""

    def __init__(self, height):
        self.height = height
        self.figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=DOTS, facecolor=PAGE)
        self.pixels = Affine2D().scale(1 / WIDTH, 1 / height) + self.figure.transFigure
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()

    def text(self, x, y, text, size=12, color=TEXT, **more):
        return self.figure.text(x / WIDTH, 1 - y / self.height, text, fontsize=size * .72, color=color,
                                **{"va": "center"} | more)

    def width(self, text, size=12):
        measured = self.text(0, 0, text, size)
        width = measured.get_window_extent(self.renderer).width
        measured.remove()
        return width * 100 / DOTS

    def box(self, x, y, width, height, color, border=None, radius=3):
        style = f"round,pad=0,rounding_size={radius}"
        self.figure.add_artist(FancyBboxPatch((x + .5, self.height - y - height + .5), width - 1, height - 1, style,
                                              facecolor=color, edgecolor=border or color, linewidth=.72, zorder=-1,
                                              transform=self.pixels))

    def axes(self, x, y, width, height):
        axes = self.figure.add_axes((x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height))
        axes.set_facecolor("none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0, labelsize=11 * .72, labelcolor=TEXT, pad=5)
        axes.margins(0)
        return axes

    def png(self):
        """With few colours, ours and those that it has most of, which takes a quarter of the space."""
        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=DOTS, facecolor=PAGE)
        reduced(Image.open(drawn).convert("RGB")).save(small, format="png", optimize=True)
        return small.getvalue()


def reduced(picture):
    """To NUM_COLORS: each pixel gets the nearest."""
    pixels = numpy.asarray(picture).reshape(-1, 3).astype(numpy.int32)
    seen, which, counts = numpy.unique(pixels @ [1 << 16, 1 << 8, 1], return_inverse=True, return_counts=True)
    parts = lambda numbers: numpy.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1)
    ours = [int(to_hex(color)[1:], 16) for color in [*PALETTE, *HEAT(numpy.linspace(0, 1, 16))]]
    kept = parts(numpy.concatenate([ours, seen[numpy.argsort(-counts)]])[:NUM_COLORS])
    nearest = numpy.concatenate([((some[:, None] - kept) ** 2).sum(axis=2).argmin(axis=1)
                                 for some in numpy.array_split(parts(seen), 64)])
    small = Image.fromarray(nearest[which].astype(numpy.uint8).reshape(picture.height, picture.width))
    small.putpalette(kept.astype(numpy.uint8).tobytes())
    return small


def rectangle(panel):
    """(x, y, width, height) of a panel below the page's header."""
    place, column = panel["gridPos"], (WIDTH - 2 * MARGIN + GAP) / 24
    return (round(MARGIN + place["x"] * column), HEADER + place["y"] * (CELL + GAP),
            round(place["w"] * column - GAP), place["h"] * (CELL + GAP) - GAP)


def draw_header(page, dashboard, start, end):
    page.text(MARGIN, 28, dashboard["title"], 19)
    clock = lambda format_, moment: time.strftime(format_, time.gmtime(moment))
    span = f"{clock('%Y-%m-%d %H:%M:%S', start)} to {clock('%H:%M:%S', end)} UTC"
    width = page.width(span) + 24
    page.box(WIDTH - MARGIN - width, 14, width, 28, PANEL, BORDER)
    page.text(WIDTH - MARGIN - width / 2, 28, span, ha="center")
    x = MARGIN
    for variable in dashboard["templating"]["list"]:
        chosen = "Prometheus" if variable["type"] == "datasource" else variable["current"]["text"]
        for word, color in ((variable["label"], PANEL), (chosen, PAGE)):
            width = page.width(word) + 20
            page.box(x, 52, width, 26, color, BORDER)
            page.text(x + width / 2, 65, word, color=DIM if word == variable["label"] else TEXT, ha="center")
            x += width + 1
        x += 10


def draw_frame(page, panel):
    x, y, width, height = rectangle(panel)
    page.box(x, y, width, height, PANEL, BORDER)
    page.text(x + PADDING, y + 18, panel["title"], 13.5)
    if panel.get("description"):
        after = x + PADDING + page.width(panel["title"], 13.5) + 14
        page.text(after, y + 18, "i", 10, DIM, ha="center",
                  bbox={"boxstyle": "circle,pad=.25", "fc": "none", "ec": DIM, "lw": .7})


def defaults(panel):
    return panel["fieldConfig"]["defaults"]


def steps(panel):
    return defaults(panel).get("thresholds", {}).get("steps", STANDARD_STEPS)


def threshold_color(panel, value):
    """Of the last step that the value reaches."""
    reached = [step for step in steps(panel) if step["value"] is None or value >= step["value"]]
    return COLORS[reached[-1]["color"]]


def series_color(panel, name, number):
    """Said by the panel, or the next of the palette."""
    for override in panel["fieldConfig"]["overrides"]:
        wanted = override["matcher"]["options"]
        if re.search(wanted.strip("/"), name) if wanted.startswith("/") else wanted == name:
            return COLORS[override["properties"][0]["value"]["fixedColor"]]
    return PALETTE[number % len(PALETTE)]


def draw_value(page, panel, value, color):
    """In the middle of the upper part, as large as there is room for."""
    x, y, width, _ = rectangle(panel)
    number, unit = units.written(value, defaults(panel)["unit"])
    gap = 3 if unit in ("", "%") else 8
    wide = lambda size: page.width(number, size) + page.width(unit, size * .55) + gap
    size = min(38, 38 * (width - 2 * PADDING) / wide(38))
    left = x + (width - wide(size)) / 2
    page.text(left, y + 76, number, size, color, va="baseline")
    page.text(left + page.width(number, size) + gap, y + 76, unit, size * .55, color, va="baseline")


def draw_stat(page, panel, series):
    x, y, width, height = rectangle(panel)
    _, times, values = series[0]
    last = values[numpy.isfinite(values)][-1]
    color = threshold_color(panel, last)
    draw_value(page, panel, last, color)
    axes = page.axes(x + 1, y + height * .66, width - 2, height * .34 - 1)
    axes.set_axis_off()
    axes.plot(times, values, color=color, linewidth=.9)
    low, high = defaults(panel).get("min", numpy.nanmin(values)), numpy.nanmax(values)
    low = min(low, 0) if low == high else low
    axes.fill_between(times, low, values, color=color, alpha=.18, linewidth=0)
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(low, high + ((high - low) * .08 or 1))


def legend_rows(page, names, width):
    """Names in rows that fit, each as (name, number, x)."""
    rows, x = [[]], 0
    for number, name in enumerate(names):
        wide = page.width(name, 11.5) + 22 + 14
        if rows[-1] and x + wide > width:
            rows.append([])
            x = 0
        rows[-1].append((name, number, x))
        x += wide
    return rows


def draw_legend(page, panel, names, colors):
    """Below a graph. Returns its height."""
    x, y, width, height = rectangle(panel)
    rows = legend_rows(page, names, width - 2 * PADDING)
    top = y + height - LINE * len(rows) - 5
    for i, row in enumerate(rows):
        for name, number, shift in row:
            middle = top + LINE * (i + .5)
            page.box(x + PADDING + shift, middle - 1.5, 14, 4, colors[number], radius=1)
            page.text(x + PADDING + shift + 19, middle, name, 11.5)
    return LINE * len(rows) + 8


def top_of(panel, highest):
    """Where the panel's axis ends: where the panel says, or above what is seen."""
    said, custom = defaults(panel), defaults(panel).get("custom", {})
    if "max" in said:
        return said["max"]
    return max(highest * 1.05, custom.get("axisSoftMax", 0)) or 1


def shows_thresholds(panel):
    return defaults(panel).get("custom", {}).get("thresholdsStyle", {}).get("mode", "off") != "off"


def set_clock(axes, start, end):
    distance = next(seconds for seconds in (10, 20, 30, 60, 120, 300, 600) if (end - start) / seconds <= 8)
    ticks = numpy.arange(math.ceil(start / distance) * distance, end, distance)
    axes.set_xlim(start, end)
    axes.set_xticks(ticks, [time.strftime("%H:%M:%S", time.gmtime(tick)) for tick in ticks])


def labelled_axes(page, panel, below, labels):
    """Axes that leave room for the labels at their left and for what is `below`."""
    x, y, width, height = rectangle(panel)
    left = max(page.width(label, 11) for label in labels) + PADDING + 8
    return page.axes(x + left, y + 42, width - left - PADDING - 6, height - 42 - 24 - below)


def draw_graph(page, panel, series):
    said = defaults(panel)
    colors = [series_color(panel, name, number) for number, (name, _, _) in enumerate(series)]
    below = draw_legend(page, panel, [name for name, _, _ in series], colors)
    stacked = said["custom"]["stacking"]["mode"] == "normal"
    values = [numpy.array(values) for _, _, values in series]
    if stacked:
        values = list(numpy.cumsum([numpy.nan_to_num(each) for each in values], axis=0))
    top = top_of(panel, max(numpy.nanmax(each, initial=0) for each in values))
    ticks = numpy.arange(0, top * (1 + 1e-9), units.tick_step(top, said["unit"]))
    labels = [units.tick_text(tick, said["unit"]) for tick in ticks]
    axes = labelled_axes(page, panel, below, labels)
    times = series[0][1]
    set_clock(axes, times[0], times[-1])
    axes.set_ylim(0, top)
    axes.set_yticks(ticks, labels)
    axes.grid(color=GRID, linewidth=.72)
    axes.set_axisbelow(True)
    for number, each in reversed(list(enumerate(values))):
        axes.plot(times, each, color=colors[number], linewidth=1.1, clip_on=True)
        if stacked:
            floor = values[number - 1] if number else 0
            axes.fill_between(times, floor, each, color=colors[number], linewidth=0,
                              alpha=said["custom"]["fillOpacity"] / 100)
    if shows_thresholds(panel):
        for step in steps(panel)[1:]:
            axes.axhline(step["value"], color=COLORS[step["color"]], linewidth=1, linestyle=(0, (6, 4)))


def draw_heatmap(page, panel, series):
    """Prometheus' buckets hold what is smaller, too: each row is what it has more than the one below."""
    bounds = sorted(series, key=lambda each: float(each[0]))
    counts = numpy.diff(numpy.array([values for _, _, values in bounds]), axis=0, prepend=0)
    counts = numpy.where(counts > 1e-9, counts, numpy.nan)
    unit = panel["options"]["yAxis"]["unit"]
    labels = [units.text(float(name), unit).replace("inf", "+Inf") for name, _, _ in bounds]
    x, y, width, height = rectangle(panel)
    axes = labelled_axes(page, panel, 26, labels)
    times = bounds[0][1]
    step = times[1] - times[0]
    axes.pcolormesh(numpy.append(times, times[-1] + step), numpy.arange(len(bounds) + 1), counts ** .5, cmap=HEAT,
                    edgecolors=PANEL, linewidth=.3)
    set_clock(axes, times[0], times[-1])
    axes.set_yticks(numpy.arange(1, len(bounds) + 1)[1::2], labels[1::2])
    axes.grid(axis="y", color=GRID, linewidth=.5)
    draw_heat_scale(page, x + PADDING, y + height - 22, numpy.nanmax(counts))


def draw_heat_scale(page, x, y, most):
    axes = page.axes(x + 16, y + 3, 160, 8)
    axes.set_axis_off()
    axes.imshow(numpy.linspace(0, 1, 160)[None, :] ** .5, aspect="auto", cmap=HEAT)
    page.text(x, y + 7, "0", 11)
    page.text(x + 184, y + 7, units.text(round(most), "short"), 11)


DRAWN = {"stat": draw_stat, "timeseries": draw_graph, "heatmap": draw_heatmap}


def draw(dashboard, data, start, end):
    """PNG of a dashboard; `data` has the series of each panel by its id."""
    bottom = max(sum(rectangle(panel)[1::2]) for panel in dashboard["panels"])
    page = Page(bottom + MARGIN)
    draw_header(page, dashboard, start, end)
    for panel in dashboard["panels"]:
        draw_frame(page, panel)
        DRAWN[panel["type"]](page, panel, data[panel["id"]])
    return page.png()
