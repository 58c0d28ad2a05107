// Draws the charts when they come into view, in the colours of the theme, and makes tables, views and hints work.
"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const drawn = new Set();
  const views = {};
  const options = {}; // by chart: the axis ("step", "elapsed" or "examples") and the smoothing
  const axisDrawn = {}; // by chart, the axis that it was last drawn with
  const hidden = {}; // by chart, the names that were switched off
  const isNarrow = () => window.innerWidth < 640;
  const isTouch = matchMedia("(pointer: coarse)").matches;

  // ---- plotly, unpacked

  async function loadPlotly() {
    const packed = document.getElementById("plotly-packed");
    const text = atob(packed.textContent);
    const bytes = new Uint8Array(text.length);
    for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
  }

  // ---- charts

  // A string that begins with "--" under a key that names a colour is a variable of the style sheet.
  function withColours(value, key, style) {
    if (typeof value === "string") {
      return /colou?rs?$/.test(key) && value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) {
      return /colors?$/.test(key) ? value.map((entry) => withColours(entry, key, style)) : value;
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, withColours(entry, name, style)]));
    }
    return value;
  }

  function merged(base, other) {
    const result = { ...base };
    for (const [key, value] of Object.entries(other || {})) {
      const isObject = value && typeof value === "object" && !Array.isArray(value);
      result[key] = isObject ? merged(result[key] || {}, value) : value;
    }
    return result;
  }

  function baseLayout(style) {
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      gridcolor: colour("--grid"),
      zerolinecolor: colour("--grid"),
      linecolor: colour("--grid"),
      tickfont: { color: colour("--text-soft"), size: 11 },
      title: { font: { color: colour("--text-soft"), size: 11 }, standoff: 8 },
      automargin: true,
    };
    return {
      autosize: true,
      margin: { l: isNarrow() ? 36 : 52, r: isNarrow() ? 10 : 24, t: 10, b: 36 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
      hoverlabel: {
        bgcolor: colour("--raised"),
        bordercolor: colour("--line-strong"),
        font: { color: colour("--text"), size: 12 },
        align: "left",
        namelength: -1,
      },
      showlegend: false, // the page has its own, which wraps
      xaxis: { ...axis, tickformat: ",~r", unifiedhovertitle: { text: "step %{x}" }, nticks: isNarrow() ? 5 : 0 },
      yaxis: { ...axis, nticks: 6 },
      yaxis2: { ...axis, showgrid: false },
      uniformtext: { minsize: 11, mode: "hide" },
      // On a touch screen, dragging scrolls the page.
      dragmode: isTouch ? false : "zoom",
    };
  }

  function figure(id) {
    const chart = charts[id];
    const style = getComputedStyle(root);
    const view = chart.views[views[id] || 0] || { layout: {}, traces: null };
    const traces = withOptions(chart, options[id] || {});
    const inView = view.traces ? traces.filter((_, index) => view.traces.includes(index)) : traces;
    const shown = inView.map((trace) => ({ ...trace, visible: !(hidden[id] && hidden[id].has(trace.name)) }));
    const base = baseLayout(style);
    if (!chart.layout.yaxis2) delete base.yaxis2;
    const layout = merged(merged(base, withColours(chart.layout, "", style)), withColours(view.layout, "", style));
    const axis = otherAxis(id);
    if (axis) {
      const title = { ...layout.xaxis.title, text: axis.title };
      layout.xaxis = { ...layout.xaxis, title, unifiedhovertitle: { text: `%{x:,.6~r} ${axis.title}` } };
    }
    return { data: shown.map((trace) => withColours(trace, "", style)), layout };
  }

  const otherAxis = (id) => (charts[id].axes || {})[(options[id] || {}).axis];

  // The traces over time or examples instead of steps, and with a smoothed curve over each pale one.
  function withOptions(chart, { axis, smoothing }) {
    const other = (chart.axes || {})[axis];
    const traces = chart.traces.map((trace, index) => (other ? { ...trace, x: other.x[index] } : trace));
    const weight = Number(smoothing || 0);
    if (!weight || !chart.smoothable) return traces;
    return traces.flatMap((trace, index) => {
      if (!chart.smoothable.includes(index)) return [trace];
      const smooth = { ...trace, y: smoothed(trace.y, weight), mode: "lines", line: { ...trace.line, shape: "linear" } };
      return [{ ...trace, opacity: 0.3, hoverinfo: "skip", hovertemplate: null, mode: "lines" }, smooth];
    });
  }

  // An exponential moving average without the pull of its first value; gaps stay gaps.
  function smoothed(values, weight) {
    let sum = 0;
    let total = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + value;
      total = weight * total + 1;
      return sum / total;
    });
  }

  async function draw(id) {
    const place = document.getElementById(id);
    const { data, layout } = figure(id);
    const isFirst = !drawn.has(id);
    const isSameAxis = axisDrawn[id] === otherAxis(id);
    axisDrawn[id] = otherAxis(id);
    if (!isFirst && isSameAxis && place.layout && place.layout.xaxis && place.layout.xaxis.autorange === false) {
      layout.xaxis = { ...layout.xaxis, range: place.layout.xaxis.range.slice(), autorange: false };
    }
    drawn.add(id);
    const config = { displayModeBar: false, responsive: true, doubleClick: "reset+autosize", scrollZoom: false };
    await Plotly.react(place, data, layout, config);
    showLegend(id, place);
    if (isFirst) {
      place.dataset.drawn = "";
      place.on("plotly_relayout", (change) => follow(id, change));
    }
  }

  // Names above the chart; a click takes a curve away or brings it back.
  function showLegend(id, place) {
    if (!charts[id].legend.length) return;
    const style = getComputedStyle(root);
    const legend = document.createElement("div");
    legend.className = "keys";
    for (const { name, text, color, mark } of charts[id].legend) {
      const key = document.createElement("button");
      const swatch = document.createElement("i");
      swatch.className = `swatch ${mark}`;
      swatch.style.background = style.getPropertyValue(color);
      key.type = "button";
      key.append(swatch, text);
      key.setAttribute("aria-pressed", String(!(hidden[id] && hidden[id].has(name))));
      key.addEventListener("click", () => {
        hidden[id] = hidden[id] || new Set();
        if (!hidden[id].delete(name)) hidden[id].add(name);
        draw(id);
      });
      legend.append(key);
    }
    const before = place.previousElementSibling;
    if (before && before.className === "keys") before.remove();
    place.before(legend);
  }

  // Charts over the steps of the run zoom together.
  let isFollowing = false;
  async function follow(source, change) {
    if (isFollowing || !charts[source].followsSteps) return;
    const range = "xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    if (!range && !change["xaxis.autorange"]) return;
    isFollowing = true;
    const others = [...drawn].filter((id) => id !== source && charts[id].followsSteps);
    const update = range ? { "xaxis.range": range } : { "xaxis.autorange": true };
    try {
      await Promise.all(others.map((id) => Plotly.relayout(id, update)));
    } finally {
      isFollowing = false;
    }
  }

  function watch() {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) {
            observer.unobserve(entry.target);
            draw(entry.target.id);
          }
        }
      },
      { rootMargin: "300px" },
    );
    for (const place of document.querySelectorAll("[data-chart]")) observer.observe(place);
    window.addEventListener("beforeprint", () => {
      for (const place of document.querySelectorAll("[data-chart]")) if (!drawn.has(place.id)) draw(place.id);
    });
    document.addEventListener("themechange", () => drawn.forEach(draw));
  }

  function giveUp(error) {
    for (const place of document.querySelectorAll("[data-chart]")) {
      place.className = "missing";
      place.textContent = `This chart cannot be drawn here (${error.message}). It needs a browser from 2023 or later.`;
    }
  }

  // ---- buttons

  function press(group, button) {
    for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  }

  function onClick(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const group = button.closest(".segmented");
    if (button.dataset.view !== undefined) {
      press(group, button);
      for (const id of group.dataset.charts.split(" ")) {
        views[id] = Number(button.dataset.view);
        if (drawn.has(id)) draw(id);
      }
    } else if (button.dataset.option) {
      press(group, button);
      setOption(group.dataset.charts, button.dataset.option, button.dataset.value);
    } else if (button.dataset.panel) {
      press(group, button);
      for (const other of group.querySelectorAll("button")) {
        document.getElementById(other.dataset.panel).hidden = other !== button;
      }
    } else if (button.closest("table.sortable th")) {
      sort(button.closest("th"));
    } else if (button.id === "theme") {
      window.theme.next();
    }
  }

  function setOption(ids, name, value) {
    for (const id of ids.split(" ")) {
      options[id] = { ...options[id], [name]: value };
      if (drawn.has(id)) drawSoon(id);
    }
  }

  // A slider that is moved asks more often than a chart can be drawn.
  const waiting = new Set();
  function drawSoon(id) {
    if (!waiting.size) {
      requestAnimationFrame(() => {
        const ids = [...waiting];
        waiting.clear();
        ids.forEach(draw);
      });
    }
    waiting.add(id);
  }

  function onSlide(event) {
    const { value, dataset, nextElementSibling } = event.target;
    nextElementSibling.value = value;
    setOption(dataset.charts, dataset.option, value);
  }

  function showTheme() {
    const names = { auto: ["Auto", "as the system"], light: ["Light", "light"], dark: ["Dark", "dark"] };
    const [text, spoken] = names[window.theme.chosen];
    const button = document.getElementById("theme");
    button.textContent = text;
    button.setAttribute("aria-label", `Colors: ${spoken}`);
  }

  function sort(title) {
    const body = title.closest("table").tBodies[0];
    const column = [...title.parentNode.children].indexOf(title);
    const key = (row) => {
      const cell = row.children[column];
      const text = cell.dataset.sort ?? cell.textContent;
      return text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
    };
    const isNumber = title.classList.contains("number") || typeof key(body.rows[0] || title.parentNode) === "number";
    const before = title.getAttribute("aria-sort");
    const isDown = before ? before === "ascending" : isNumber; // numbers: the largest first
    for (const other of title.parentNode.children) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const rows = [...body.rows].sort((a, b) => (isDown ? -1 : 1) * compare(key(a), key(b)));
    body.append(...rows);
  }

  function onFilter(event) {
    const wanted = event.target.value.trim().toLowerCase();
    for (const place of document.querySelectorAll("[data-metric]")) {
      place.hidden = !place.dataset.metric.toLowerCase().includes(wanted);
    }
    for (const fold of document.querySelectorAll(".more-metrics")) {
      if (wanted && fold.querySelector("[data-metric]:not([hidden])")) fold.open = true;
    }
  }

  // ---- explanations

  function explain(target) {
    const hint = document.getElementById("hint");
    const source = target && target.closest && target.closest("[data-tip]");
    hint.hidden = !source;
    if (!source) return;
    hint.textContent = source.dataset.tip;
    const place = source.getBoundingClientRect();
    const left = Math.min(Math.max(place.left, 8), window.innerWidth - hint.offsetWidth - 8);
    const isBelow = place.bottom + hint.offsetHeight + 12 < window.innerHeight;
    hint.style.left = `${Math.max(left, 8)}px`;
    hint.style.top = `${isBelow ? place.bottom + 6 : place.top - hint.offsetHeight - 6}px`;
  }

  function makeHint() {
    const hint = document.createElement("div");
    hint.id = "hint";
    hint.hidden = true;
    hint.setAttribute("role", "tooltip");
    document.body.append(hint);
    document.addEventListener("pointerover", (event) => explain(event.target));
    document.addEventListener("focusin", (event) => explain(event.target));
    document.addEventListener("focusout", () => explain(null));
    document.addEventListener("scroll", () => explain(null), { passive: true });
    document.addEventListener("keydown", (event) => event.key === "Escape" && explain(null));
  }

  document.addEventListener("click", onClick);
  document.addEventListener("themechange", showTheme);
  for (const input of document.querySelectorAll("input[type=range]")) input.addEventListener("input", onSlide);
  for (const input of document.querySelectorAll("[data-filter]")) input.addEventListener("input", onFilter);
  makeHint();
  showTheme();
  loadPlotly()
    .then(watch, giveUp)
    .then(() => (root.dataset.ready = ""));
})();
