"""The page's figures, with Bokeh: the network with its live loads, and the jobs' rates over time.

`figures` makes them once; `columns` turns every snapshot into their data. Of the coordinates, x is in 0..1, and y is a
layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Range1d
from bokeh.plotting import figure

from controlplane.common.numbers import short

LEAST_WIDTH, MOST_WIDTH = 1.5, 9.0
NEAR = 0.9
OVER = 1.1
STEPS = ((0.02, "idle", "#8a94a3"), (0.5, "under half", "#c4b5fd"), (NEAR, "under 90 %", "#a78bfa"),
         (OVER, "as planned", "#7c3aed"), (math.inf, "more than planned", "#d946ef"))  # fmt: skip
"""Steps of measured load as a part of planned load: the upper limit, the words, and the colour. All colours are violet,
so that none is taken for a job's, and can be read on white and on black."""
JOB_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#8c564b", "#bcbd22", "#17becf", "#98df8a", "#f4a582",
    "#00ff00", "#aa0099", "#88ccff", "#990000", "#22ee66", "#ffbbff", "#005500", "#0044ff",
)  # fmt: skip
"""Colours of jobs, which take them in turn by their numbers. A number is the lowest that is free, so up to sixteen jobs
at a time differ. No colour is violet (loads) or red (bottleneck, disabled), and each can be read on white and on black.
"""
OFF_COLOUR, BOTTLENECK_COLOUR = "#d73a49", "#e5484d"
LEAST_HISTORY = 60.0
"""Least number of seconds that the figure of the rates shows; it shows as much as there is."""
ARC_POINTS = 13
CROWD = 24
"""Number of servers above which their names are written small, in two rows."""
MANY_LINKS = 200
"""Number of links above which they are drawn half as wide."""

SOURCES: dict[str, tuple[str, ...]] = {
    "links": ("xs", "ys", "from", "to", "planned", "measured", "bandwidth", "ratio", "jobs", "other", "colour",
              "width", "live_width", "live", "alpha"),
    "lit": ("xs", "ys", "colour"),
    "worst": ("xs", "ys"),
    "nodes": ("x", "y", "name", "what", "detail", "state", "marker", "size", "colour", "edge"),
    "adds": ("x", "y", "colour", "size"),
    "named": ("x", "y", "name", "shift"),
    "off": ("x", "y"),
    "ring": ("x", "y"),
    "rates": ("xs", "ys", "colour", "job", "dash"),
}  # fmt: skip


def colour_of(job_number: int) -> str:
    """Return a job's colour, which is the same everywhere on the page."""
    return JOB_COLOURS[(job_number - 1) % len(JOB_COLOURS)]


def step_of(measured: float, planned: float) -> tuple[str, str]:
    """Return how a link's load compares to its plan, in words, and the colour for it."""
    ratio = measured / planned if planned > 0 else (math.inf if measured > 0.01 else 0.0)
    return next((words, colour) for limit, words, colour in STEPS if ratio < limit or math.isinf(limit))


def _empty(name: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in SOURCES[name]}, name=name)


def figures(layers: int, servers: int) -> dict[str, Any]:
    """Return the arguments of Bokeh.embed.embed_item, by the element that each goes to."""
    made = {"network": _network(layers, servers), "rates": _rates()}
    return {name: json_item(plot, name) for name, plot in made.items()}


def _network(layers: int, servers: int) -> Any:
    plot = figure(
        sizing_mode="stretch_both",
        x_range=Range1d(start=-0.02, end=1.02),
        y_range=Range1d(start=-0.55, end=max(layers - 0.6, 0.6)),
        tools="pan,wheel_zoom,reset,save",
        toolbar_location="above",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
    )
    plot.axis.visible = False
    plot.toolbar.logo = None
    plot.grid.visible = False
    sources = {name: _empty(name) for name in SOURCES if name != "rates"}
    round_cap: Any = {"line_cap": "round", "line_join": "round"}
    plot.multi_line("xs", "ys", source=sources["worst"], line_width=17, line_color=BOTTLENECK_COLOUR, line_alpha=0.35,
                    **round_cap)  # fmt: skip
    planned = plot.multi_line("xs", "ys", source=sources["links"], line_width="width", line_color="#8a94a3",
                              line_alpha="alpha", hover_line_alpha=0.9, **round_cap)  # fmt: skip
    plot.multi_line(
        "xs",
        "ys",
        source=sources["links"],
        line_width="live_width",
        line_color="colour",
        line_alpha="live",
        name="live",
        **round_cap,
    )
    plot.multi_line("xs", "ys", source=sources["lit"], line_width=3.5, line_color="colour", **round_cap)
    plot.scatter("x", "y", source=sources["ring"], size=34, fill_alpha=0, line_color=BOTTLENECK_COLOUR, line_width=3)
    plot.scatter("x", "y", source=sources["adds"], size="size", fill_alpha=0, line_color="colour", line_width=2.5)
    nodes = plot.scatter("x", "y", source=sources["nodes"], marker="marker", size="size", fill_color="colour",
                         line_color="edge", line_width=1.2)  # fmt: skip
    plot.scatter("x", "y", source=sources["off"], marker="x", size=20, line_color=OFF_COLOUR, line_width=3.5)
    crowded = servers > CROWD
    plot.text("x", "y", text="name", source=sources["named"], y_offset="shift", name="names",
              text_font_size="8.5px" if crowded else "11px", text_color="#57606a",
              text_align="center", text_baseline="middle")  # fmt: skip
    plot.add_tools(
        HoverTool(renderers=[planned], line_policy="interp", tooltips=[
            ("link", "@from to @to"), ("measured", "@measured{0.00} Mbit/s, @ratio"),
            ("planned", "@planned{0.00} of @bandwidth{0.##} Mbit/s"), ("jobs", "@jobs"),
            ("other traffic", "@other{0.00} Mbit/s"),
        ]),
        HoverTool(renderers=[nodes], tooltips=[("", "@name"), ("", "@what"), ("", "@detail"), ("", "@state")]),
    )  # fmt: skip
    return plot


def _rates() -> Any:
    plot = figure(
        sizing_mode="stretch_both",
        x_range=Range1d(start=-LEAST_HISTORY, end=0, name="ago"),
        y_range=DataRange1d(start=0, range_padding=0.15),
        tools="pan,xwheel_zoom,reset,save",
        toolbar_location=None,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        x_axis_label="seconds ago",
        y_axis_label="Mbit/s per worker",
    )
    plot.multi_line("xs", "ys", source=_empty("rates"), line_color="colour", line_width=2.2, line_dash="dash")
    plot.grid.grid_line_color = "#8a94a3"
    plot.grid.grid_line_alpha = 0.2
    return plot


# -- what they show, from a snapshot -----------------------------------------------------------------------------------


def columns(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of each data source, and what lights up for each job and tree."""
    place = {node["name"]: (node["x"], node["y"]) for node in snapshot["nodes"]}
    colours = {job["name"]: colour_of(job["number"]) for job in snapshot["jobs"]}
    paths = {(link["from"], link["to"]): path(place, link["from"], link["to"]) for link in snapshot["links"]}
    full = max((link["bandwidth_mbps"] for link in snapshot["links"]), default=1.0)
    return {
        "links": _links(snapshot, paths, full),
        "worst": _worst(snapshot, paths),
        **_nodes(snapshot, colours),
        "rates": _history(snapshot, colours),
        "lights": _lights(snapshot, paths, colours),
    }


def path(place: Mapping[str, tuple[float, float]], u: str, v: str) -> tuple[list[float], list[float]]:
    """Return a link's line, as x and y. The lines of its two directions are a little apart; inside a layer, a link is
    an arc."""
    (x0, y0), (x1, y1) = place[u], place[v]
    apart = 0.25 / max(16, len(place))
    if y0 != y1:
        side = apart if y1 > y0 else -apart
        return [x0 + side, x1 + side], [y0, y1]
    height = min(0.42, 0.1 + 0.5 * abs(x1 - x0)) + (0.03 if x1 > x0 else -0.03)
    steps = [step / (ARC_POINTS - 1) for step in range(ARC_POINTS)]
    return [x0 + (x1 - x0) * t for t in steps], [y0 + height * 4 * t * (1 - t) for t in steps]


def _width(mbps: float, full: float, most: float) -> float:
    return LEAST_WIDTH + (most - LEAST_WIDTH) * min(1.0, mbps / full)


def _links(snapshot: Mapping[str, Any], paths: Mapping[Any, Any], full: float) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {name: [] for name in SOURCES["links"]}
    most = MOST_WIDTH if len(paths) <= MANY_LINKS else MOST_WIDTH / 2
    for link in snapshot["links"]:
        planned, measured = link["planned_mbps"], link["measured_mbps"]
        words, colour = step_of(measured, planned)
        xs, ys = paths[link["from"], link["to"]]
        live = measured > 0.01
        shares = ", ".join(f"{job} {rate:.3g}" for job, rate in sorted(link["jobs"].items()) if rate > 0.01)
        off = f"disabled ({link['off']})" if link["off"] else ""
        row = {
            "xs": xs, "ys": ys, "from": link["from"], "to": link["to"], "planned": planned, "measured": measured,
            "bandwidth": link["bandwidth_mbps"], "ratio": words, "jobs": off or shares or "none",
            "other": link["other_mbps"],
            "colour": OFF_COLOUR if link["off"] else colour,
            "width": _width(planned, full, most) if planned else 1.0,
            "live_width": _width(measured, full, most),
            "live": 1.0 if live or link["off"] else 0.0,  # browsers ignore a width of 0
            "alpha": 0.45 if planned else 0.25,
        }  # fmt: skip
        for name, value in row.items():
            made[name].append(value)
    return made


def _worst(snapshot: Mapping[str, Any], paths: Mapping[Any, Any]) -> dict[str, list[Any]]:
    found = [tuple(job["bottleneck"]["link"]) for job in snapshot["jobs"] if job["bottleneck"]["link"]]
    return _lines(paths, [link for link in dict.fromkeys(found) if link in paths])


def _lines(paths: Mapping[Any, Any], links: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    lines = [paths[link] for link in links]
    return {"xs": [xs for xs, _ in lines], "ys": [ys for _, ys in lines]}


def _nodes(snapshot: Mapping[str, Any], colours: Mapping[str, str]) -> dict[str, dict[str, list[Any]]]:
    made: dict[str, dict[str, list[Any]]] = {
        name: {column: [] for column in SOURCES[name]} for name in ("nodes", "adds", "named", "off", "ring")
    }
    worst = {job["bottleneck"]["name"] for job in snapshot["jobs"]}
    servers = [node["name"] for node in snapshot["nodes"] if node["kind"] == "server"]
    lower = {name for row, name in enumerate(servers) if row % 2 and len(servers) > CROWD}
    for node in snapshot["nodes"]:
        switch = node["kind"] == "switch"
        what, detail, state, colour = (_switch if switch else _server)(node, colours)
        at = {"x": node["x"], "y": node["y"]}
        root = not switch and "parameter_server" in node["jobs"].values()
        _append(made["nodes"], at | {
            "name": node["name"], "what": what, "detail": detail, "state": state, "colour": colour,
            "marker": "circle" if switch else "square" if root else "inverted_triangle",
            "size": 15 if switch else 12 if root else 9, "edge": "#57606a",
        })  # fmt: skip
        shift = -17 - 4 * len(node.get("adds_for", ())) if switch else 27 if node["name"] in lower else 16
        _append(made["named"], at | {"name": node["name"], "shift": shift})
        for ring, job in enumerate(node.get("adds_for", ())):
            _append(made["adds"], at | {"colour": colours[job], "size": 20 + 6 * ring})
        if node["off"]:
            _append(made["off"], at)
        if node["name"] in worst:
            _append(made["ring"], at)
    return made


def _append(columns: dict[str, list[Any]], row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        columns[name].append(value)


def _switch(node: Mapping[str, Any], colours: Mapping[str, str]) -> tuple[str, str, str, str]:
    adds = node["adds_for"]
    what = f"adds for {', '.join(adds)}" if adds else "forwards"
    limit = node["aggregation_mbps"]
    of = f" of {limit:.4g}" if limit is not None else ""
    detail = f"adds {short(node['planned_mbps'])}{of} Mbit/s planned; {node['slots_used']} of {node['slots']} slots"
    state = node["problem"] or node["state"]
    if node["off"]:
        state = f"disabled ({node['off']})"
    colour = "#b8c0cc" if not adds else colours[adds[0]] if len(adds) == 1 else "#6e7781"
    return what, detail, state, colour


def _server(node: Mapping[str, Any], colours: Mapping[str, str]) -> tuple[str, str, str, str]:
    jobs = node["jobs"]
    what = ", ".join(f"{role.replace('_', ' ')} of {job}" for job, role in jobs.items()) or "in no job"
    missing = [job for job in jobs if job not in node["joined"]]
    state = f"has not joined {', '.join(missing)}" if missing else "joined" if jobs else ""
    if node["off"]:
        state = f"disabled ({node['off']})"
    detail = f"takes {short(node['planned_mbps'])} Mbit/s planned" if node["planned_mbps"] else ""
    if not jobs:
        return what, detail, state, "#d0d7de"
    return what, detail, state, "#ffffff" if missing else colours.get(next(iter(jobs)), "#d0d7de")


def _history(snapshot: Mapping[str, Any], colours: Mapping[str, str]) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {name: [] for name in SOURCES["rates"]}
    now = snapshot["time"]
    for job in snapshot["jobs"]:
        points: Sequence[tuple[float, float]] = job["history"]
        times = [when - now for when, _ in points]
        for ys, dash in (([rate for _, rate in points], []), ([job["planned_mbps"]] * len(points), [6, 4])):
            _append(made, {"xs": times, "ys": ys, "colour": colours[job["name"]], "job": job["name"], "dash": dash})
    return made


def slowest_hop(tree: Mapping[str, Any], links: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return, in words, the link of a tree that carries the least part of what all jobs plan on it; "" where nothing
    was measured on any of the tree's links."""
    there = [links[tuple(link)] for link in tree["links"] if tuple(link) in links]
    used = [link for link in there if link["planned_mbps"] > 0]
    if not any(link["measured_mbps"] > 0 for link in used):
        return ""
    worst = min(used, key=lambda link: (link["measured_mbps"] / link["planned_mbps"], link["from"], link["to"]))
    return f"{worst['from']} to {worst['to']}, {100 * worst['measured_mbps'] / worst['planned_mbps']:.0f} %"


def history_seconds(snapshot: Mapping[str, Any]) -> float:
    """Return the seconds that the rates of any job go back, but at least LEAST_HISTORY."""
    oldest = min((job["history"][0][0] for job in snapshot["jobs"] if job["history"]), default=snapshot["time"])
    return float(max(LEAST_HISTORY, snapshot["time"] - oldest))


def _lights(
    snapshot: Mapping[str, Any], paths: Mapping[Any, Any], colours: Mapping[str, str]
) -> dict[str, dict[str, list[Any]]]:
    """Return what is highlighted under the pointer: links by their number, per "job" and "job/tree"."""
    numbers = {link: number for number, link in enumerate(paths)}
    lights: dict[str, dict[str, Any]] = {}
    for job in snapshot["jobs"]:
        every: set[int] = set()
        for tree in job["trees"]:
            own = sorted(numbers[tuple(link)] for link in tree["links"] if tuple(link) in numbers)
            every.update(own)
            lights[f"{job['name']}/{tree['tree']}"] = {"links": own, "colour": colours[job["name"]]}
        lights[job["name"]] = {"links": sorted(every), "colour": colours[job["name"]]}
    return lights
