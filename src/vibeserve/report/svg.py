"""Every chart that reports are made of; each function returns a `Chart` (drawn wide and for a phone, with its data)."""

from vibeserve.report.bars import Bars, Interval, bars, intervals
from vibeserve.report.chart import Chart
from vibeserve.report.lanes import Lane, timeline
from vibeserve.report.plots import (
    Request,
    Rule,
    Series,
    latency_strip,
    latency_throughput,
    line_chart,
    scatter,
    sparkline,
)
from vibeserve.report.rooflines import Roof, RoofPoint, log_log_roofline
from vibeserve.report.scales import Axis

__all__ = [
    "Axis",
    "Bars",
    "Chart",
    "Interval",
    "Lane",
    "Request",
    "Roof",
    "RoofPoint",
    "Rule",
    "Series",
    "bars",
    "intervals",
    "latency_strip",
    "latency_throughput",
    "line_chart",
    "log_log_roofline",
    "scatter",
    "sparkline",
    "timeline",
]
