"use strict";
// Draws bars of kept and dropped with thresholds between them, and curves of what is kept, using uPlot. Data come from #data, colours from the style sheet.
const DATA = JSON.parse(document.getElementById("data").textContent);

const CHARTS = (() => {
  const drawn = new Map();
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const whole = new Intl.NumberFormat("en");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Bars begin at the bottom. On a linear scale, dropped is stacked on kept; on a logarithmic one, every bin has one colour.
  function series(chart) {
    const x = chart.labels.map((_, i) => i);
    if (chart.curve) return [x, chart.kept];
    if (chart.log) return [x, chart.dropped.map((n) => n || null), chart.kept.map((n) => n || null)];
    return [x, chart.dropped.map((n, i) => n + chart.kept[i]), chart.kept];
  }

  function lines(chart) {
    return (u) => {
      const { ctx, bbox } = u, ratio = devicePixelRatio;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--text");
      ctx.lineWidth = ratio;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      ctx.font = `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
      ctx.textBaseline = "top";
      let row = 0;
      for (const [label, at] of chart.thresholds) {
        const x = Math.round(u.valToPos(chart.curve ? at : at - 0.5, "x", true));
        ctx.beginPath();
        ctx.moveTo(x, bbox.top - 14 * ratio * (chart.thresholds.length - row));
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const wide = ctx.measureText(label).width;
        const isRight = x + wide + 8 * ratio < bbox.left + bbox.width;
        ctx.textAlign = isRight ? "left" : "right";
        ctx.fillText(label, x + (isRight ? 4 : -4) * ratio, bbox.top - 14 * ratio * (chart.thresholds.length - row));
        row += 1;
      }
      ctx.restore();
    };
  }

  // Chooses which bins are labelled below the axis: as many as there is room for.
  function splits(chart, width) {
    const longest = Math.max(...chart.labels.map((label) => label.length)) * 6.2 + 14;
    const step = Math.max(1, Math.ceil((chart.labels.length * longest) / Math.max(1, width - 60)));
    return chart.labels.map((_, i) => i).filter((i) => i % step === 0);
  }

  function options(chart, element, readout) {
    const width = element.clientWidth, height = element.clientHeight;
    const bars = uPlot.paths.bars({ size: [0.86, 64], gap: 1 });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--faint"), width: 1 }, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}` };
    const most = Math.max(1, ...chart.labels.map((_, i) => chart.kept[i] + chart.dropped[i]));
    const names = chart.curve ? ["--kept"] : ["--gone", "--kept"];
    const drawing = (name) => (chart.curve ? { stroke: colour(name), width: 2, points: { size: 5, fill: colour(name) } } : { paths: bars, fill: colour(name), width: 0, points: { show: false } });
    const y = chart.log ? { distr: 3, range: () => [0.6, most * 1.6] } : { range: () => [0, most * 1.04] };
    return {
      width, height,
      padding: [14 * chart.thresholds.length + 6, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [-0.6, chart.labels.length - 0.4] }, y },
      axes: [
        { ...axis, size: 26, grid: { show: false }, splits: () => splits(chart, width), values: (_, at) => at.map((i) => chart.labels[i] ?? "") },
        { ...axis, size: 46, values: (_, at) => at.map((n) => short.format(n)), ...(chart.log ? { splits: () => decades(most) } : {}) },
      ],
      series: [{}, ...names.map(drawing)],
      hooks: { draw: [lines(chart)], setCursor: [(u) => { readout.textContent = u.cursor.idx == null ? "" : said(chart, u.cursor.idx); }] },
    };
  }

  const decades = (most) => Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, power) => 10 ** power);

  function said(chart, i) {
    const gone = chart.names[1] ? `, ${whole.format(chart.dropped[i])} ${chart.names[1]}` : "";
    return `${chart.labels[i]}: ${whole.format(chart.kept[i])} ${chart.names[0]}${gone}`;
  }

  function draw(element) {
    const chart = DATA.charts[element.dataset.chart];
    drawn.get(element)?.destroy();
    if (element.clientWidth) drawn.set(element, new uPlot(options(chart, element, element.parentElement.querySelector(".readout")), series(chart), element));
  }

  const all = () => document.querySelectorAll(".plot[data-chart]").forEach(draw);
  function start() {
    all();
    const widths = new WeakMap();
    const watch = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) {
        if (widths.has(target) && widths.get(target) !== contentRect.width) draw(target);
        widths.set(target, contentRect.width);
      }
    });
    document.querySelectorAll(".plot[data-chart]").forEach((element) => watch.observe(element));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
    matchMedia("print").addEventListener("change", all);
  }
  return { start };
})();
