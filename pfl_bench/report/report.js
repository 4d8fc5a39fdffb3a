"use strict";
// The page without this script is whole; with it, curves and tables can be asked and changed.
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const root = document.documentElement;
  root.classList.add("scripted");
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const make = (tag, properties = {}, children = []) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const MOST = 8, STYLES = 6, DASHES = [[], [6, 2.5], [1.5, 2], [8, 2.5, 1.5, 2.5]];
  const color = (style) => css(`--s${style % STYLES}`);
  const dashes = (style) => DASHES[(style + Math.floor(style / STYLES)) % DASHES.length];

  const format = (value, key = "") => {
    if (value === null || value === undefined) return "";
    let unit = /bytes/.test(key) ? "B" : /flops/.test(key) ? "FLOP" : "";
    if (unit && Math.abs(value) >= 1000) {
      let place = 0;
      for (; Math.abs(value) >= 999.5 && place < 7; place++) value /= 1000;
      unit = " kMGTPEZ"[place].trim() + unit;
    }
    const size = Math.abs(value);
    const text = size && (size < 1e-3 || size >= 1e6)
      ? value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e")
      : String(Number(value.toPrecision(4)));
    return unit ? `${text} ${unit}` : text;
  };

  // A row's curve: of several runs their mean at the steps that all have, and their range.
  const curve = (row, x, y, scale) => {
    const tables = row.runs.map((run) => {
      const points = new Map();
      if (run[x] && run[y]) run.step.forEach((step, i) => {
        if (run[x][i] !== null && run[y][i] !== null) points.set(step, [run[x][i] * scale, run[y][i]]);
      });
      return points;
    }).filter((points) => points.size);
    if (!tables.length) return null;
    const points = [...tables[0].keys()].filter((step) => tables.every((one) => one.has(step)))
      .map((step) => {
        const xs = tables.map((one) => one.get(step)[0]), ys = tables.map((one) => one.get(step)[1]);
        const mean = (values) => values.reduce((a, b) => a + b) / values.length;
        return [mean(xs), mean(ys), Math.min(...ys), Math.max(...ys), step];
      });
    points.sort((a, b) => a[0] - b[0]);
    return points.length ? { points, runs: tables.length } : null;
  };

  const hidden = new Set(), drawn = new Map();
  const tip = make("div", { className: "tip", hidden: true });
  document.body.append(tip);

  // What a chart draws: columns over a common x, and of each column what it is.
  const columns = (spec) => {
    const scale = (numbers.x.find(([key]) => key === spec.x) || [0, 0, 1])[2];
    const tables = [], series = [{}], bands = [], about = [null];
    const positive = (value, log) => (log && value <= 0 ? null : value);
    for (const [name, label, style] of spec.lines) {
      const row = numbers.rows[name];
      const line = row && curve(row, spec.x, spec.y, scale);
      if (!line) continue;
      const points = line.points.filter((point) => !spec.logX || point[0] > 0);
      let edges = line.runs > 1 ? [points.map((p) => p[2]), points.map((p) => p[3])] : null;
      if (spec.band) {
        edges = spec.band.map((key) => curve(row, spec.x, key, scale).points.map((p) => p[1]));
      }
      const column = (values) => values.map((value) => positive(value, spec.log));
      const table = [points.map((p) => p[0]), column(points.map((p) => p[1]))];
      const at = series.length, show = !hidden.has(name);
      const single = points.length === 1;
      series.push({
        label, show, stroke: () => color(style), width: 2, dash: dashes(style), spanGaps: true,
        points: { show: single, size: 6, fill: () => color(style) },
      });
      about.push({ name, label, style, edges: edges ? [at + 1, at + 2] : null });
      if (edges) {
        for (const edge of edges) {
          table.push(column(edge));
          series.push({ show, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
          about.push({ name, edge: true });
        }
        bands.push({ series: [at + 2, at + 1], fill: () => `${color(style)}2e` });
      }
      tables.push(table);
    }
    return tables.length ? { data: uPlot.join(tables), series, bands, about } : null;
  };

  const showTip = (plot, spec, about) => {
    const { left, top, idx, idxs } = plot.cursor;
    if (!plot.over.matches(":hover") || idx === null || idx === undefined || left < 0) return;
    const lines = about.flatMap((one, i) => {
      if (!one || one.edge || !plot.series[i].show || idxs[i] === null || idxs[i] === undefined) return [];
      const value = plot.data[i][idxs[i]];
      let text = format(value, spec.y);
      if (one.edges) {
        const [low, high] = one.edges.map((edge) => format(plot.data[edge][idxs[i]], spec.y));
        text += ` (${low} to ${high})`;
      }
      const place = plot.data[0][idxs[i]];
      if (place !== plot.data[0][idx]) text += ` at ${format(place, spec.x)}`;
      const swatch = make("i");
      swatch.style.background = color(one.style);
      const words = make("span", {}, [swatch, one.label, make("em", { textContent: text })]);
      return [[value, words]];
    });
    if (!lines.length) return;
    lines.sort((a, b) => b[0] - a[0]);
    const heading = `${spec.x_label} ${format(plot.data[0][idx], spec.x)}`;
    tip.replaceChildren(make("b", { textContent: heading }), ...lines.map(([, words]) => words));
    tip.hidden = false;
    const box = plot.over.getBoundingClientRect(), width = tip.offsetWidth;
    const edge = root.clientWidth - width - 4;
    let x = box.left + left + 14;
    if (x > edge) x = Math.max(4, Math.min(edge, box.left + left - width - 14));
    tip.style.left = `${x + scrollX}px`;
    tip.style.top = `${box.top + top + 14 + scrollY}px`;
  };

  const sizeOf = (element, wide) => {
    const width = Math.floor(element.clientWidth);
    return { width, height: Math.round(Math.min(wide ? 400 : 280, Math.max(200, width * 0.62))) };
  };

  // Marks of a logarithmic axis: powers of ten, with twos and fives where there are few.
  const powers = (plot, place, min, max) => {
    const [low, high] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
    const steps = max > 1000 * min ? [1] : [1, 2, 5], marks = [];
    for (let power = low; power <= high; power++) {
      for (const step of steps) marks.push(Number(`${step}e${power}`));
    }
    return marks.filter((mark) => mark >= min && mark <= max);
  };
  const axis = (key, log, label) => ({
    ...(log ? { splits: powers, filter: (plot, marks) => marks } : {}),
    stroke: () => css("--soft"), font: "12px system-ui, sans-serif", label, labelSize: label ? 22 : 0,
    labelFont: "12px system-ui, sans-serif", labelGap: 0,
    grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
    values: (plot, marks) => marks.map((mark) => format(mark, key)),
  });

  // Draw a chart in an element, in the place of what was there; false if there is nothing.
  const draw = (element, spec, wide) => {
    drawn.get(element)?.plot.destroy();
    drawn.delete(element);
    const shown = columns(spec);
    if (!shown) return false;
    const [low, high] = spec.limits || [null, null];
    const range = (plot, min, max) => {
      if (min === null) return [0, 1];
      const [from, to] = uPlot.rangeNum(min, max, 0.06, false);
      return [low ?? from, high ?? to];
    };
    const y = axis(spec.y, spec.log);
    y.size = (plot, values) => 14 + 6.6 * Math.max(4, ...(values || []).map((text) => text.length));
    const x = axis(spec.x, spec.logX, spec.x_label);
    x.space = 64;
    x.size = 26;
    if (spec.x === "step") x.incrs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
    const options = {
      ...sizeOf(element, wide), legend: { show: false }, padding: [8, 24, 0, 0],
      scales: {
        x: { time: false, distr: spec.logX ? 3 : 1 },
        y: spec.log ? { distr: 3 } : { distr: 1, range },
      },
      axes: [x, y], series: shown.series, bands: shown.bands,
      cursor: {
        sync: { key: spec.x, scales: ["x", null] }, drag: { x: true, y: false },
        hover: { skip: [null, undefined] }, y: false,
        points: { size: (plot, i) => (shown.about[i]?.edge ? 0 : 7) },
      },
      hooks: { setCursor: [(plot) => showTip(plot, spec, shown.about)] },
    };
    const plot = new uPlot(options, shown.data, element);
    plot.over.addEventListener("mouseleave", () => { tip.hidden = true; });
    drawn.set(element, { plot, about: shown.about, wide });
    return true;
  };

  const resize = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const one = drawn.get(target);
    const size = one && sizeOf(target, one.wide);
    if (one && size.width > 0 && size.width !== one.plot.width) one.plot.setSize(size);
  }));
  for (const element of document.querySelectorAll(".live")) {
    const picture = element.nextElementSibling;
    const wide = element.closest(".one") !== null;
    element.role = "img";
    element.ariaLabel = picture?.getAttribute("aria-label") || "";
    if (draw(element, JSON.parse(element.dataset.chart), wide)) resize.observe(element);
    else element.remove();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { plot } of drawn.values()) plot.redraw();
  });

  // Legends: a row is shown or not in all charts alike.
  const toggle = (name) => {
    if (!hidden.delete(name)) hidden.add(name);
    for (const { plot, about } of drawn.values()) plot.batch(() => about.forEach((one, i) => {
      if (one?.name === name) plot.setSeries(i, { show: !hidden.has(name) });
    }));
    for (const entry of document.querySelectorAll(".legend li")) {
      if (entry.dataset.row === name) entry.firstChild.ariaPressed = String(!hidden.has(name));
    }
  };
  for (const entry of document.querySelectorAll(".legend li[data-row]")) {
    const name = entry.dataset.row;
    const button = make("button", { type: "button", title: "show or hide", onclick: () => toggle(name) },
      [...entry.childNodes]);
    button.ariaPressed = "true";
    entry.replaceChildren(button);
  }

  // The explorer: any scalar over any axis.
  const explorer = document.getElementById("explorer");
  if (explorer && numbers.y.length) {
    const names = Object.keys(numbers.rows);
    const used = new Set(names.map((name) => numbers.rows[name].unit));
    const units = ["round", "epoch"].filter((unit) => used.has(unit));
    const axes = [...units.map((unit) => [unit, "step", unit]), ...numbers.x.map(([key, label]) => [label, key, null])];
    const select = (choices) => make("select", {}, choices.map((text, i) => make("option", { value: String(i), textContent: text })));
    const x = select(axes.map(([label]) => label)), y = select(numbers.y);
    const parts = names.length > MOST
      ? Array.from({ length: Math.ceil(names.length / MOST) }, (_, i) => [i * MOST, Math.min((i + 1) * MOST, names.length)])
      : [];
    const rows = select([...parts.map(([from, to]) => `${from + 1} to ${to}`), "all"]);
    const [logX, logY] = [0, 1].map(() => make("input", { type: "checkbox" }));
    const chart = make("div"), empty = make("p", { className: "soft", textContent: "No row has both." });
    const redraw = () => {
      const [label, key, unit] = axes[Number(x.value)];
      const [from, to] = parts[Number(rows.value)] || [0, names.length];
      const lines = names.map((name, style) => [name, name, style]).slice(from, to)
        .filter(([name]) => !unit || numbers.rows[name].unit === unit);
      const spec = { x: key, x_label: label, y: numbers.y[Number(y.value)], lines, log: logY.checked, logX: logX.checked };
      const some = draw(chart, spec, true);
      chart.hidden = !some;
      empty.hidden = some;
    };
    for (const control of [x, y, rows, logX, logY]) control.addEventListener("change", redraw);
    explorer.append(make("div", { className: "controls" }, [
      make("label", {}, ["show", y]), make("label", {}, ["over", x]),
      ...(parts.length ? [make("label", {}, ["rows", rows])] : []),
      make("label", {}, [logY, "logarithmic values"]), make("label", {}, [logX, "logarithmic axis"]),
    ]), empty, chart);
    explorer.hidden = false;
    redraw();
    resize.observe(chart);
  }

  // Tables: sorted by a click on a heading, narrowed down by words.
  const worth = (cell) => {
    const text = cell.dataset.key ?? cell.textContent.trim();
    const found = text.replace(/,/g, "").match(/^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf\b)(?: ([kMGTPEZ]?)(?:B|FLOP)$)?/);
    const number = found ? Number(found[1].replace("inf", "Infinity")) * 1000 ** " kMGTPEZ".indexOf(found[2] || " ") : NaN;
    return text === "-" || text === "" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], rows = [...body.rows];
    if (rows.length < 2) continue;
    const headings = [...table.tHead.rows[0].cells];
    const sort = (place, direction) => {
      const keys = new Map(rows.map((row) => [row, worth(row.cells[place])]));
      const last = (row) => row.querySelector(".total") !== null;
      const sorted = direction ? [...rows].sort((a, b) => {
        if (last(a) || last(b)) return last(a) - last(b);
        const [one, other] = [keys.get(a), keys.get(b)];
        return one === null || other === null ? compare(one, other) : direction * compare(one, other);
      }) : rows;
      body.append(...sorted);
      headings.forEach((heading, i) => { heading.ariaSort = i === place && direction ? (direction > 0 ? "ascending" : "descending") : "none"; });
    };
    headings.forEach((heading, place) => {
      const button = make("button", { type: "button", title: "sort", textContent: heading.textContent });
      button.onclick = () => sort(place, { ascending: -1, descending: 0 }[heading.ariaSort] ?? 1);
      heading.replaceChildren(button);
    });
    if (rows.length < 6) continue;
    const words = make("input", { type: "search", placeholder: "filter", ariaLabel: "filter the table" });
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
    });
    const order = make("select", { ariaLabel: "sort by" }, headings.map((heading, i) =>
      make("option", { value: String(i), textContent: heading.textContent })));
    order.addEventListener("change", () => sort(Number(order.value), 1));
    const controls = make("div", { className: "controls" }, [words,
      make("label", { className: "narrow" }, ["sort by", order])]);
    table.parentElement.before(controls);
  }
})();
