"use strict";

// Draws the plots of the page in the colours of its style, and again when the colours change.
(() => {
  const report = JSON.parse(document.getElementById("plots").textContent);
  const HEIGHT = 260;
  let drawn = [];

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function count(value) {
    return value == null ? "–" : Math.round(value).toLocaleString("en");
  }

  // A dashed line and a letter at each moment that the table below the plots names.
  function drawMarks(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("faint");
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    let free = 0;
    for (const [letter, seconds] of report.marks) {
      const x = plot.valToPos(seconds, "x", true);
      if (x < left || x > left + width) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      // Letters of moments that are close together are drawn next to one another.
      const place = Math.max(x, free);
      ctx.fillText(letter, place, top - 5 * ratio);
      free = place + 11 * ratio;
    }
    ctx.restore();
  }

  function options(lines, width) {
    const axis = {
      stroke: color("faint"),
      grid: { stroke: color("rule"), width: 1 },
      ticks: { stroke: color("rule"), width: 1 },
    };
    return {
      width,
      height: HEIGHT,
      padding: [20, 16, 0, 0],
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.05] } },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((tick) => `${tick} s`) },
        { ...axis, size: 70, values: (_, ticks) => ticks.map(count) },
      ],
      series: [
        { label: "time", value: (_, value) => (value == null ? "–" : `${value.toFixed(1)} s`) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: color(line.color),
          width: 2,
          points: { show: false },
          value: (_, value) => count(value),
        })),
      ],
      hooks: { draw: [drawMarks] },
    };
  }

  function draw() {
    for (const plot of drawn) plot.destroy();
    drawn = report.plots.map(({ lines, data }, number) => {
      const place = document.getElementById(`plot-${number}`);
      return new uPlot(options(lines, place.clientWidth), data, place);
    });
  }

  function fit() {
    for (const plot of drawn) {
      plot.setSize({ width: plot.root.parentElement.clientWidth, height: HEIGHT });
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", fit);
})();
