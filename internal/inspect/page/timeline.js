(() => {
  "use strict";
  const d = JSON.parse(document.getElementById("data").textContent);
  const n = d.index.length, GUTTER = 64, TOP = 26;
  const by = (id) => document.getElementById(id);
  const canvas = by("canvas"), plot = by("plot"), tip = by("tip"), status = by("status"), filter = by("filter"), rowsBy = by("rows");
  const g = canvas.getContext("2d");

  const end = new Float64Array(n), children = new Map(), lanes = [];
  let longest = 0;
  for (let i = 0; i < n; i++) {
    end[i] = d.arrival[i] + d.last[i];
    longest = Math.max(longest, end[i]);
    (lanes[d.lane[i]] ||= []).push(i);
    if (d.parent[i] >= 0) {
      if (!children.has(d.parent[i])) children.set(d.parent[i], []);
      children.get(d.parent[i]).push(i);
    }
  }
  longest = Math.max(longest, 1);

  let from = 0, to = longest, top = 0, height = 14, hovered = -1, matches = null, list = null, colors = {}, due = false;
  const isSlots = () => rowsBy.value === "slots";
  const rowCount = () => isSlots() ? lanes.length : list ? list.length : n;
  const inRow = (row) => list ? list[row] : row;

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["wait", "prefill", "decode", "turn", "text", "quiet", "line", "ground"]) colors[name] = style.getPropertyValue("--" + name).trim();
  }
  const area = () => ({ width: plot.clientWidth - GUTTER, height: plot.clientHeight - TOP });
  const xOf = (ms) => GUTTER + (ms - from) / (to - from) * area().width;
  const msOf = (x) => from + (x - GUTTER) / area().width * (to - from);
  const rowOfRequest = (i) => isSlots() ? d.lane[i] : list ? list.indexOf(i) : i;

  function fit() {
    height = Math.min(Math.max(area().height / Math.max(rowCount(), 1), isSlots() ? 3 : 1), 18);
    top = 0;
  }
  function clampView() {
    const least = 0.01, width = Math.min(Math.max(to - from, least), longest * 1.02);
    from = Math.min(Math.max(from, -0.01 * longest), longest * 1.01 - width);
    to = from + width;
    top = Math.min(Math.max(top, 0), Math.max(rowCount() * height - area().height, 0));
  }
  function redraw() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(); });
  }

  function ticks() {
    const rough = (to - from) / Math.max(area().width / 110, 1), ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= rough);
    const all = [];
    for (let k = Math.ceil(from / step); k * step <= to; k++) all.push(k * step);
    const inSeconds = step >= 100, digits = Math.max(0, -Math.floor(Math.log10(inSeconds ? step / 1000 : step)));
    return all.map((ms) => [ms, inSeconds ? (ms / 1000).toFixed(digits) + " s" : ms.toFixed(digits) + " ms"]);
  }

  function bar(i, y, h) {
    const a = d.arrival[i], x0 = xOf(a), x2 = xOf(a + d.first[i]), x3 = xOf(end[i]);
    const x1 = d.prefill[i] < 0 ? x2 : xOf(a + d.prefill[i]);
    const paint = (color, l, r) => {
      l = Math.max(l, GUTTER); r = Math.min(r, canvas.clientWidth);
      if (r > l) { g.fillStyle = color; g.fillRect(l, y, Math.max(r - l, 0.6), h); }
    };
    if (x3 - x0 < 1) { paint(colors.decode, x0, x0 + 1); return; }
    paint(colors.wait, x0, x1);
    paint(colors.prefill, x1, x2);
    paint(colors.decode, x2, Math.max(x3, x2 + 0.6));
    if (h >= 11 && x3 - x0 > 34) {
      g.fillStyle = colors.ground;
      g.fillText(d.index[i], Math.max(x0, GUTTER) + 4, y + h / 2);
    }
  }

  // The first request of a slot that ends after a time: in a slot one follows the other.
  function firstAfter(slot, ms) {
    let lo = 0, hi = slot.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (end[slot[mid]] < ms) lo = mid + 1; else hi = mid; }
    return lo;
  }

  function draw() {
    clampView();
    const scale = window.devicePixelRatio || 1, { height: below } = area(), width = plot.clientWidth;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(plot.clientHeight * scale)) {
      canvas.width = Math.round(width * scale); canvas.height = Math.round(plot.clientHeight * scale);
    }
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, plot.clientHeight);
    g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
    for (const [ms, name] of ticks()) {
      const x = xOf(ms);
      if (x < GUTTER) continue;
      g.fillStyle = colors.line; g.fillRect(x, TOP - 4, 1, below + 4);
      g.fillStyle = colors.quiet; g.textAlign = x < GUTTER + 20 ? "left" : "center"; g.fillText(name, x, TOP / 2);
    }
    g.save();
    g.beginPath(); g.rect(0, TOP, width, below); g.clip();
    const first = Math.max(Math.floor(top / height), 0), last = Math.min(Math.ceil((top + below) / height), rowCount());
    const h = Math.max(height - (height > 3 ? 1 : 0), 1), every = Math.max(Math.ceil(13 / height), 1);
    for (let row = first; row < last; row++) {
      const y = TOP + row * height - top;
      if (row % every === 0) {
        g.fillStyle = colors.quiet; g.textAlign = "right";
        g.fillText(isSlots() ? row + 1 : d.index[inRow(row)], GUTTER - 8, y + height / 2);
      }
      g.textAlign = "left";
      if (!isSlots()) { bar(inRow(row), y, h); continue; }
      const slot = lanes[row];
      let done = -1;
      for (let k = firstAfter(slot, from); k < slot.length && d.arrival[slot[k]] <= to; k++) {
        const i = slot[k], right = xOf(end[i]);
        if (right < done) continue; // less than a pixel, beside one that is drawn
        g.globalAlpha = matches && !matches[i] ? 0.12 : 1;
        bar(i, y, h);
        done = Math.floor(right) + 0.5;
      }
      g.globalAlpha = 1;
    }
    if (hovered >= 0) connect(hovered, h);
    g.restore();
    g.fillStyle = colors.quiet; g.textAlign = "left";
    g.fillText(isSlots() ? "slot" : "request", 6, TOP / 2);
  }

  // The request under the mouse, and arrows to the turns before and after it.
  function connect(i, h) {
    const place = (k, ms) => [xOf(ms), TOP + rowOfRequest(k) * height - top + h / 2];
    g.strokeStyle = colors.turn; g.lineWidth = 1.5;
    const link = (a, b) => {
      if (rowOfRequest(a) < 0 || rowOfRequest(b) < 0) return;
      const [x0, y0] = place(a, end[a]), [x1, y1] = place(b, d.arrival[b]), bend = Math.max(Math.abs(x1 - x0) / 2, 12);
      g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1); g.stroke();
    };
    for (let k = i; d.parent[k] >= 0; k = d.parent[k]) link(d.parent[k], k);
    const later = [i];
    while (later.length > 0) {
      const k = later.pop();
      for (const child of children.get(k) || []) { link(k, child); later.push(child); }
    }
    const [x0, y] = place(i, d.arrival[i]);
    g.strokeStyle = colors.text;
    g.strokeRect(x0 - 1, y - h / 2 - 1, Math.max(xOf(end[i]) - x0, 1) + 2, h + 2);
  }

  function at(x, y) {
    const row = Math.floor((y - TOP + top) / height);
    if (x < GUTTER || y < TOP || row < 0 || row >= rowCount()) return -1;
    if (!isSlots()) return inRow(row);
    const ms = msOf(x), near = (to - from) / area().width * 3, slot = lanes[row];
    const k = firstAfter(slot, ms - near);
    return k < slot.length && d.arrival[slot[k]] <= ms + near ? slot[k] : -1;
  }

  const two = (ms) => ms.toFixed(ms < 10 ? 2 : 1) + " ms";
  function describe(i) {
    const lines = ["request " + d.index[i] + (d.finish[i] ? " (" + d.finishes[d.finish[i]] + ")" : ""), "arrived at " + two(d.arrival[i])];
    if (d.prefill[i] >= 0) lines.push("queued " + two(d.prefill[i]) + ", prompt " + two(d.first[i] - d.prefill[i]));
    lines.push("TTFT " + two(d.first[i]) + ", E2E " + two(d.last[i]));
    if (d.output[i] > 1) lines.push("TPOT " + two((d.last[i] - d.first[i]) / (d.output[i] - 1)));
    lines.push(d.prompt[i] + " prompt tokens, " + d.cached[i] + " of them cached; " + d.output[i] + " output tokens");
    if (d.parent[i] >= 0) lines.push("goes on with request " + d.index[d.parent[i]]);
    return lines.join("\n");
  }

  const values = {
    id: (i) => d.index[i], at: (i) => d.arrival[i], ttft: (i) => d.first[i], e2e: (i) => d.last[i], prompt: (i) => d.prompt[i],
    cached: (i) => d.cached[i], output: (i) => d.output[i], slot: (i) => d.lane[i] + 1, queued: (i) => Math.max(d.prefill[i], 0),
    tpot: (i) => d.output[i] > 1 ? (d.last[i] - d.first[i]) / (d.output[i] - 1) : 0,
  };
  const compare = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "=": (a, b) => a === b };
  function parse(text) {
    const terms = [];
    for (const word of text.trim().split(/\s+/).filter(Boolean)) {
      let m;
      if ((m = /^(\d+)-(\d+)$/.exec(word))) terms.push((i) => d.index[i] >= +m[1] && d.index[i] <= +m[2]);
      else if (/^\d+$/.test(word)) terms.push((i) => d.index[i] === +word);
      else if ((m = /^([a-z0-9]+)(>=|<=|>|<|=)(-?[\d.]+)$/.exec(word)) && values[m[1]] && !isNaN(+m[3])) {
        const value = values[m[1]], is = compare[m[2]], than = +m[3];
        terms.push((i) => is(value(i), than));
      } else return null;
    }
    return terms;
  }
  function choose() {
    const terms = parse(filter.value);
    filter.classList.toggle("wrong", !terms);
    if (!terms) { status.textContent = "write for example 12, 100-200, ttft>500, cached=0; names: " + Object.keys(values).join(", "); return; }
    matches = list = null;
    if (terms.length > 0) {
      matches = new Uint8Array(n); list = [];
      for (let i = 0; i < n; i++) if (terms.every((is) => is(i))) { matches[i] = 1; list.push(i); }
    }
    status.textContent = (list ? list.length + " of " : "") + n + (n === 1 ? " request" : " requests");
    fit(); redraw();
  }

  function zoom(by, x) {
    const ms = msOf(x);
    from = ms - (ms - from) * by; to = ms + (to - ms) * by;
    redraw();
  }
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey) { top += e.deltaY || e.deltaX; redraw(); }
    else if (e.altKey) { height = Math.min(Math.max(height * (e.deltaY < 0 ? 1.2 : 1 / 1.2), 1), 40); redraw(); }
    else zoom(e.deltaY < 0 ? 1 / 1.25 : 1.25, e.offsetX);
  }, { passive: false });
  let dragged = null;
  canvas.addEventListener("pointerdown", (e) => { dragged = { x: e.offsetX, y: e.offsetY, from, to, top }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (dragged) {
      const ms = (e.offsetX - dragged.x) / area().width * (dragged.to - dragged.from);
      from = dragged.from - ms; to = dragged.to - ms; top = dragged.top - (e.offsetY - dragged.y);
      redraw();
    }
    const i = at(e.offsetX, e.offsetY);
    tip.hidden = i < 0;
    if (i >= 0) {
      tip.textContent = describe(i);
      tip.style.left = Math.min(e.offsetX + 14, plot.clientWidth - tip.offsetWidth - 4) + "px";
      tip.style.top = Math.min(e.offsetY + 14, plot.clientHeight - tip.offsetHeight - 4) + "px";
    }
    if (i !== hovered) { hovered = i; redraw(); }
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; hovered = -1; redraw(); });
  const middle = () => GUTTER + area().width / 2;
  const all = () => { from = 0; to = longest; fit(); redraw(); };
  by("in").onclick = () => zoom(1 / 1.5, middle());
  by("out").onclick = () => zoom(1.5, middle());
  by("all").onclick = all;
  by("taller").onclick = () => { height = Math.min(height * 1.5, 40); redraw(); };
  by("flatter").onclick = () => { height = Math.max(height / 1.5, 1); redraw(); };
  addEventListener("keydown", (e) => {
    if (e.target === filter || e.ctrlKey || e.metaKey) return;
    const step = (to - from) / 8;
    const keys = {
      "+": () => zoom(1 / 1.25, middle()), "-": () => zoom(1.25, middle()), "0": all,
      ArrowLeft: () => { from -= step; to -= step; redraw(); }, ArrowRight: () => { from += step; to += step; redraw(); },
      ArrowUp: () => { top -= 60; redraw(); }, ArrowDown: () => { top += 60; redraw(); },
    };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  filter.addEventListener("input", choose);
  rowsBy.addEventListener("change", () => { hovered = -1; fit(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redraw(); });
  new ResizeObserver(redraw).observe(plot);
  readColors();
  choose();
  draw();
  document.documentElement.dataset.drawn = Math.round(performance.now());
})();
