"""Draws dashboards from a recording: the panels of the Grafana JSON with the answers that Prometheus gave.

    draw.py RECORDING FOLDER

It knows the kinds of panels, units, thresholds and legends that the dashboards of the chart use, and fails on others.
"""

import io
import itertools
import json
import re
import sys
from pathlib import Path

import matplotlib
import numpy
from PIL import Image

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

DASHBOARDS = Path(__file__).resolve().parents[3] / "charts" / "dependency-watchdog" / "dashboards" / "grafana"
COLUMNS = 24
# Of one column and of one unit of height, in inches; with this resolution a picture is 1200 pixels wide.
COLUMN, UNIT, RESOLUTION = 0.5, 0.36, 100
# Colors of a picture: enough for the text to be smooth.
COLORS = 255
# For series without a color of their own: Grafana takes a blue by the value.
SERIES = "#1f60c4 #8ab8ff #3d4f9e #5794f2 #0b3a82 #a9c8f5".split()
THRESHOLD, MARK = "#c4162a", "#8f3bb8"
INK, FAINT = "#24292e", "#8e8e8e"


def main(recording: Path, folder: Path) -> None:
    recorded = json.loads(recording.read_text())
    pyplot.rcParams.update({"font.size": 8, "text.color": INK, "axes.edgecolor": "#d8d9da", "axes.linewidth": 0.6})
    for name, answers in recorded["dashboards"].items():
        dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
        picture = draw(dashboard, answers, recorded)
        (folder / f"{name}.png").write_bytes(picture)
        print(f"{folder / name}.png: {len(picture) // 1000} kB")


def draw(dashboard: dict, answers: dict, recorded: dict) -> bytes:
    """The picture of one dashboard, as PNG."""
    # The sections for debugging are folded, as they are when somebody opens the dashboard.
    panels = dashboard["panels"]
    marks = answers["marks"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) + 1.5
    figure = pyplot.figure(figsize=(COLUMNS * COLUMN, height * UNIT), dpi=RESOLUTION, facecolor="white")
    title = dashboard["title"].replace("Dependency Watchdog / ", "")
    if "shoot" in {variable["name"] for variable in dashboard["templating"]["list"]}:
        title += f": {recorded['shoot']}"
    figure.text(0.008, 1 - 0.75 / height, title, size=12, weight="bold", va="center")
    for panel in panels:
        place = panel["gridPos"]
        box = Box(figure, place["x"], place["y"] + 1.5, place["w"], place["h"], height)
        KINDS[panel["type"]](box, panel, answers.get(str(panel["id"]), []), recorded | {"marks": marks})
    png = io.BytesIO()
    figure.savefig(png, format="png")
    pyplot.close(figure)
    # Without dithering text and areas stay clean, and the file small.
    small = Image.open(png).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    small.save(packed, format="PNG", optimize=True)
    return packed.getvalue()


class Box:
    """The place of a panel in the figure."""

    def __init__(self, figure, x, y, width, height, of):
        self.figure, self._x, self._y, self.of = figure, x, y, of
        self.width, self.height = width, height

    def axes(self, left=0.0, right=0.0, top=0.0, bottom=0.0):
        """Axes within these margins, which are in columns and in units of height."""
        rectangle = (
            (self._x + left) / COLUMNS,
            1 - (self._y + self.height - bottom) / self.of,
            (self.width - left - right) / COLUMNS,
            (self.height - top - bottom) / self.of,
        )
        return self.figure.add_axes(rectangle)

    def frame(self, title: str):
        """The border and the title."""
        axes = self.axes(0.1, 0.1, 0.1, 0.1)
        axes.set_xticks([])
        axes.set_yticks([])
        where = {"x": 0.12 / (self.width - 0.2), "y": 1 - 0.55 / (self.height - 0.2)}
        axes.text(**where, s=title, size=8, weight="bold", va="center", transform=axes.transAxes)
        return axes


def row(box: Box, panel: dict, _answers, _recorded) -> None:
    axes = box.axes(0.1)
    axes.axis("off")
    title = f"{'▸' if panel['collapsed'] else '▾'} {panel['title']}"
    axes.text(0, 0.4, title, size=9.5, weight="bold", va="center", color="#1f60c4", transform=axes.transAxes)


def stat(box: Box, panel: dict, answers, _recorded) -> None:
    axes = box.frame(panel["title"])
    found = [float(series["value"][1]) for series in answers[0]]
    defaults = panel["fieldConfig"]["defaults"]
    text = written(found[0], defaults["unit"]) if found else "No data"
    color = threshold(found[0], defaults["thresholds"]["steps"]) if found else FAINT
    axes.text(0.5, 0.42, text, size=20, weight="bold", color=color, ha="center", va="center", transform=axes.transAxes)


def table(box: Box, panel: dict, answers, _recorded) -> None:
    axes = box.frame(panel["title"])
    rows = sorted(answers[0], key=lambda series: -float(series["value"][1]))
    headers = panel["transformations"][0]["options"]["renameByName"]
    names = list(headers)
    if not rows:
        axes.text(0.5, 0.45, "No data", size=9, color=FAINT, ha="center", transform=axes.transAxes)
        return
    lines = [[headers[name] for name in names]]
    lines += [[cell(series, name) for name in names] for series in rows]
    widths = [max(len(line[column]) for line in lines) + 2 for column in range(len(names))]
    for number, line in enumerate(lines[: int(box.height) - 2]):
        for column, text in enumerate(line):
            axes.text(
                0.03 + 0.94 * sum(widths[:column]) / sum(widths),
                1 - (1.6 + number * 0.9) / (box.height - 0.2),
                text,
                weight="bold" if number == 0 else "normal",
                size=7.5,
                va="center",
                transform=axes.transAxes,
            )


def cell(series: dict, name: str) -> str:
    return written(float(series["value"][1]), "short") if name == "Value" else series["metric"].get(name, "")


def timeseries(box: Box, panel: dict, answers, recorded) -> None:
    box.frame(panel["title"])
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    stacked = custom["stacking"]["mode"] == "normal"
    below = numpy.zeros(0)
    lines = [(label(target, series), series) for target, of in zip(panel["targets"], answers) for series in of]
    columns = 6 if box.width > 20 else 3 if box.width > 10 else 2
    axes = box.axes(1.3, 0.35, 1.1, 1.25 + 0.42 * -(-len(lines) // columns))
    others = itertools.cycle(SERIES)
    for name, series in lines:
        color = fixed_color(panel, name) or next(others)
        times, values = points(series, recorded)
        if stacked:
            grid = numpy.arange(0, recorded["end"] - recorded["began"] + 1)
            values = on_grid(grid, times, values)
            below = below if len(below) else numpy.zeros_like(values)
            axes.fill_between(grid, below, below + values, color=color, alpha=0.45, lw=0, step="post", label=name)
            axes.step(grid, below + values, color=color, lw=0.8, where="post")
            below = below + values
        else:
            axes.plot(times, values, color=color, lw=1.2, label=name)
            axes.fill_between(times, 0, values, color=color, alpha=custom["fillOpacity"] / 150, lw=0)
    if "thresholdsStyle" in custom:
        axes.axhline(defaults["thresholds"]["steps"][-1]["value"], color=THRESHOLD, lw=0.8, ls="--")
    for mark in recorded["marks"]:
        axes.axvline(mark, color=MARK, lw=0.6, ls=":")
    scales(axes, recorded)
    highest = max((float(value) for _, series in lines for _, value in series["values"] if value != "NaN"), default=0)
    # An axis needs some height where all is zero.
    axes.set_ylim(defaults.get("min"), defaults.get("max", axes.get_ylim()[1] if highest > 0 else 1))
    if defaults["unit"] == "short":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: written(value, defaults["unit"]))
    axes.grid(axis="y", lw=0.4, color="#e4e5e6")
    legend(box, axes, columns if lines else 0)


KINDS = {
    "row": row,
    "stat": stat,
    "table": table,
    "timeseries": timeseries,
}


def points(series: dict, recorded: dict):
    """Seconds since the beginning, and values."""
    times = numpy.array([float(moment) - recorded["began"] for moment, _ in series["values"]])
    values = numpy.array([float(value) for _, value in series["values"]])
    # A gap stays a gap.
    gaps = numpy.flatnonzero(numpy.diff(times) > 1.5) + 1
    return numpy.insert(times, gaps, times[gaps] - 1), numpy.insert(values, gaps, numpy.nan)


def on_grid(grid, times, values):
    """Values at every second; none is nothing."""
    found = numpy.zeros_like(grid, dtype=float)
    where = numpy.clip(numpy.rint(times).astype(int), 0, len(grid) - 1)
    found[where] = numpy.nan_to_num(values)
    return found


def label(target: dict, series: dict) -> str:
    text = target["legendFormat"] or ", ".join(series["metric"].values())
    for name, value in series["metric"].items():
        text = text.replace("{{" + name + "}}", value)
    return text


def fixed_color(panel: dict, name: str) -> str | None:
    """Of a series. The last override that matches wins, as in Grafana."""
    found = None
    for override in panel["fieldConfig"]["overrides"]:
        how, options = override["matcher"]["id"], override["matcher"]["options"]
        matches = options == name if how == "byName" else re.search(options.strip("/"), name)
        if matches:
            found = override["properties"][0]["value"]["fixedColor"]
    return found


def scales(axes, recorded) -> None:
    length = recorded["end"] - recorded["began"]
    axes.set_xlim(0, length)
    axes.set_xticks(range(0, int(length) + 1, 30))
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{int(seconds) // 60}:{int(seconds) % 60:02}")
    axes.tick_params(length=0, labelsize=7, colors="#5a5f66")
    for side in "top", "right", "left":
        axes.spines[side].set_visible(False)


def legend(box: Box, axes, columns: int) -> None:
    if columns == 0:
        axes.text(0.5, 0.5, "No data", size=9, color=FAINT, ha="center", transform=axes.transAxes)
        return
    axes.legend(
        loc="upper left",
        # Below the labels of the axis, which are as high in every panel.
        bbox_to_anchor=(-0.02, -0.75 / (axes.get_position().height * box.of)),
        ncols=columns,
        fontsize=6.5,
        frameon=False,
        handlelength=1,
        columnspacing=1.2,
        labelspacing=0.15,
        borderaxespad=0,
    )


def threshold(value: float, steps: list) -> str:
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return reached[-1]


def written(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if 0 < abs(value) < 0.9995 else f"{value:.3g} s"
    if unit == "ops":
        return f"{value:.3g}/s"
    if unit == "short":
        return f"{value:,.0f}"
    raise ValueError(f"the unit {unit} is not known here")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
