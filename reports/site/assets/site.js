/* vime's pages: draws the curves of a page, filters the matrix, says how long ago. Loads nothing. */
(function () {
  "use strict";

  /* ---- how long ago: a page that is written once must not grow wrong with age ---- */
  document.querySelectorAll("time[datetime]").forEach(function (node) {
    var then = Date.parse(node.dateTime);
    if (isNaN(then)) return;
    var seconds = Math.max(0, (Date.now() - then) / 1000);
    var units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    var unit = units.find(function (u) { return seconds >= u[0]; }) || units[3];
    node.title = node.textContent + " UTC";
    node.textContent = Math.round(seconds / unit[0]) + " " + unit[1] + " ago";
  });

  /* ---- a phone begins with the list ---- */
  if (window.innerWidth < 640) document.querySelectorAll("details[data-wide]").forEach(function (node) { node.open = false; });

  /* ---- the matrix's filters ---- */
  var form = document.querySelector("form.filters");
  if (form) filters(form);

  function filters(form) {
    var rows = Array.prototype.slice.call(document.querySelectorAll("[data-cell]"));
    var shown = document.querySelector("output[name=shown]"), columns = document.querySelectorAll("[data-column]"), lines = document.querySelectorAll("tr[data-model]");
    var names = ["tier", "hardware", "family", "state", "owner"];

    function wanted() {
      var values = {};
      names.forEach(function (name) { values[name] = form.elements[name].value; });
      values.text = form.elements.text.value.trim().toLowerCase();
      return values;
    }
    function fits(node, want) {
      var data = node.dataset;
      if (want.tier && (" " + data.tier + " ").indexOf(" " + want.tier + " ") < 0) return false;
      if (want.hardware && data.hardware !== want.hardware) return false;
      if (want.family && data.family !== want.family) return false;
      if (want.state && data.state !== want.state && data.disposition !== want.state) return false;
      if (want.owner && data.owner !== want.owner) return false;
      return !want.text || want.text.split(/\s+/).every(function (word) { return data.text.indexOf(word) >= 0; });
    }
    function apply() {
      var want = wanted(), count = 0, used = {}, models = {};
      rows.forEach(function (node) {
        var good = fits(node, want);
        node.hidden = !good;
        if (!good) return;
        if (node.dataset.row !== undefined) count++;
        else { used[node.dataset.column2] = true; models[node.dataset.model2] = true; }
      });
      columns.forEach(function (node) { node.hidden = !used[node.dataset.column]; });
      document.querySelectorAll("[data-span]").forEach(function (node) {
        var span = node.dataset.span.split(" ").filter(function (at) { return used[at]; }).length;
        node.hidden = !span;
        if (span) node.colSpan = span;
      });
      lines.forEach(function (node) { node.hidden = !models[node.dataset.model]; });
      shown.textContent = count + " of " + shown.dataset.of + " cells";
      document.body.classList.toggle("none-shown", !count);
      var parts = names.concat(["text"]).filter(function (name) { return want[name]; }).map(function (name) { return name + "=" + encodeURIComponent(want[name]); });
      history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search);
      document.querySelectorAll("button[data-pick]").forEach(function (node) { node.setAttribute("aria-pressed", String(want.state === node.dataset.pick)); });
    }
    function restore() {
      location.hash.slice(1).split("&").forEach(function (part) {
        var at = part.indexOf("="), name = part.slice(0, at);
        if (at > 0 && form.elements[name]) form.elements[name].value = decodeURIComponent(part.slice(at + 1));
      });
    }
    form.addEventListener("input", apply);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    form.addEventListener("reset", function () { setTimeout(apply); });
    document.querySelectorAll("button[data-pick]").forEach(function (node) {
      node.addEventListener("click", function () {
        var state = form.elements.state;
        state.value = state.value === node.dataset.pick ? "" : node.dataset.pick;
        apply();
      });
    });
    restore();
    apply();
  }

  /* ---- the curves ---- */
  var holder = document.getElementById("curves");
  if (holder) curves(JSON.parse(holder.textContent));

  function curves(data) {
    var xs = data.xs.map(function (x) {
      if (Array.isArray(x)) return x;
      return Array.from({ length: x.n }, function (_, i) { return x.from + i * x.by; });
    });
    var tools = document.querySelector("form.tools"), charts = [];
    var DASHES = [[], [8, 4], [2, 3], [10, 4, 2, 4], [14, 5], [5, 3, 1, 3]];
    var options = { smooth: 0, axis: "step", scale: "own" };

    function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

    /* exponential mean without the start's bias; a value that is not there stays not there */
    function smoothed(values, weight) {
      if (!weight) return values;
      var last = 0, norm = 0;
      return values.map(function (value) {
        if (value === null) return null;
        last = last * weight + (1 - weight) * value;
        norm = norm * weight + (1 - weight);
        return last / norm;
      });
    }
    function isLog(figure) { return options.scale === "log" || (options.scale === "own" && figure.log); }
    function has(figure, axis) { return axis === "step" || figure.series.every(function (s) { return s.t !== null; }); }

    function table(figure) {
      var byTime = options.axis === "time" && has(figure, "time"), log = isLog(figure);
      var tables = figure.series.map(function (series) {
        var y = series.role === "low" || series.role === "high" ? series.y : smoothed(series.y, options.smooth);
        if (log) y = y.map(function (value) { return value !== null && value > 0 ? value : null; });
        return [byTime ? data.ts[series.t] : xs[series.x], y];
      });
      return uPlot.join(tables);
    }
    function label(value) {
      if (value === null || value === undefined) return "–";
      var size = Math.abs(value);
      if (value === 0) return "0";
      if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
      return String(Number(value.toPrecision(4)));
    }
    function stroke(series) {
      if (series.role === "mean") return css("--mean");
      if (series.role !== "run") return "transparent";
      return series.group ? css("--c" + ((series.group - 1) % 6 + 1)) : css("--base");
    }
    function build(chart) {
      var figure = chart.figure, log = isLog(figure), byTime = options.axis === "time" && has(figure, "time");
      var low = figure.series.findIndex(function (s) { return s.role === "low"; }), high = figure.series.findIndex(function (s) { return s.role === "high"; });
      var ink = css("--soft"), grid = css("--line");
      var width = chart.plot.clientWidth, height = chart.plot.clientHeight;
      return new uPlot({
        width: width, height: height, padding: [14, 10, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: true }, points: { size: 6 }, sync: { key: "page", scales: ["x", null] } },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: log ? undefined : function (u, min, max) { return around(min, max); } } },
        axes: [
          { stroke: ink, grid: { show: false }, ticks: { stroke: grid }, font: "12px system-ui, sans-serif", size: 30, values: function (u, at) { return at.map(label); } },
          { stroke: ink, grid: { stroke: grid, width: 1, filter: log ? decades : all }, filter: log ? decades : all, ticks: { show: false }, font: "12px system-ui, sans-serif", size: 56, values: function (u, at) { return at.map(function (v) { return v === null ? "" : label(v); }); } }
        ],
        series: [{}].concat(figure.series.map(function (series) {
          return {
            label: series.name, stroke: stroke(series), spanGaps: false, points: { show: series.y.length === 1 },
            width: series.group ? 2 : series.role === "mean" ? 1.4 : 0.8,
            dash: series.group ? DASHES[(series.group - 1) % 6] : [],
            alpha: series.role === "run" && !series.group ? 0.55 : 1
          };
        })),
        bands: low >= 0 && high >= 0 ? [{ series: [high + 1, low + 1], fill: css("--band") }] : [],
        hooks: {
          drawClear: [function (u) { if (!byTime) windows(u, figure); }],
          draw: [function (u) { limit(u, figure); bad(u, figure, byTime); }],
          setCursor: [function (u) { tell(chart, u); }]
        }
      }, table(figure), chart.plot);
    }
    function all(u, at) { return at; }
    /* of a logarithmic axis that spans more than two decades only the decades are marked */
    function decades(u, at) {
      var whole = function (v) { return Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9; };
      return at.filter(whole).length > 2 ? at.map(function (v) { return whole(v) ? v : null; }) : at;
    }
    function around(min, max) {
      if (min === null || max === null) return [0, 1];
      if (min === max) return min === 0 ? [-0.1, 1] : [min - Math.abs(min) * 0.1, max + Math.abs(max) * 0.1];
      var pad = (max - min) * 0.05;
      return [min >= 0 && min - pad < 0 ? 0 : min - pad, max + pad];
    }
    function windows(u, figure) {
      var c = u.ctx, box = u.bbox;
      c.save();
      figure.windows.forEach(function (w) {
        var a = Math.max(box.left, u.valToPos(w[1] - 0.5, "x", true)), b = Math.min(box.left + box.width, u.valToPos(w[2] + 0.5, "x", true));
        if (b <= a) return;
        c.fillStyle = css("--window");
        c.fillRect(a, box.top, b - a, box.height);
        c.fillStyle = css("--soft");
        c.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
        c.textAlign = "left";
        if (c.measureText(w[0]).width < b - a + 60 * devicePixelRatio) c.fillText(w[0], a + 4 * devicePixelRatio, box.top + box.height - 7 * devicePixelRatio);
      });
      c.restore();
    }
    function limit(u, figure) {
      if (!figure.limit) return;
      var c = u.ctx, box = u.bbox, y = u.valToPos(figure.limit[1], "y", true);
      if (!(y >= box.top && y <= box.top + box.height)) return;
      c.save();
      c.strokeStyle = c.fillStyle = css("--bad");
      c.lineWidth = devicePixelRatio;
      c.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.left + box.width, y); c.stroke();
      c.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
      c.textAlign = "right";
      c.fillText(figure.limit[0] + " " + label(figure.limit[1]), box.left + box.width - 4 * devicePixelRatio, y - 5 * devicePixelRatio);
      c.restore();
    }
    function bad(u, figure, byTime) {
      var c = u.ctx, box = u.bbox, shift = 0;
      figure.series.forEach(function (series) {
        if (!series.bad || byTime) return;
        var x = Math.min(Math.max(u.valToPos(series.bad[0], "x", true), box.left), box.left + box.width);
        c.save();
        c.fillStyle = css("--bad");
        c.font = "bold " + 12 * devicePixelRatio + "px system-ui, sans-serif";
        c.textAlign = x > box.left + box.width / 2 ? "right" : "left";
        c.fillText("✗ " + series.bad[1] + " at " + series.bad[0], x, box.top + (12 + 14 * shift++) * devicePixelRatio);
        c.restore();
      });
    }
    function tell(chart, u) {
      var at = u.cursor.idx, tip = chart.tip;
      if (at === null || at === undefined || u.cursor.left < 0) { tip.hidden = true; return; }
      tip.textContent = "";
      line(tip, (options.axis === "time" && has(chart.figure, "time") ? label(u.data[0][at]) + " h" : "step " + u.data[0][at]), "");
      chart.figure.series.forEach(function (series, i) {
        if (series.role === "low" || series.role === "high" || (series.role === "run" && !series.group)) return;
        var value = u.data[i + 1][at];
        if (value === undefined) return;
        line(tip, series.name + "  " + (value === null ? "not a number" : label(value)), series.group ? "c" + ((series.group - 1) % 6 + 1) : "");
      });
      tip.hidden = false;
      var left = u.bbox.left / devicePixelRatio + u.cursor.left + 14, room = chart.node.clientWidth;
      tip.style.left = Math.max(0, left + tip.offsetWidth > room ? left - tip.offsetWidth - 28 : left) + "px";
    }
    function line(tip, text, css_) {
      var row = document.createElement("div");
      row.textContent = text;
      if (css_) row.className = "of-" + css_;
      tip.appendChild(row);
    }
    function draw(chart) {
      if (chart.u) chart.u.destroy();
      chart.u = build(chart);
      chart.node.dataset.drawn = options.axis + "/" + (isLog(chart.figure) ? "log" : "linear") + "/" + options.smooth;
    }
    function keys(chart, event) {
      var u = chart.u, step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape" && u) { u.setCursor({ left: -10, top: -10 }); return; }
      if (!step || !u) return;
      event.preventDefault();
      var last = u.data[0].length - 1, now = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx : step > 0 ? -1 : last + 1;
      var at = Math.min(Math.max(now + step, 0), last);
      u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: u.over.clientHeight / 2 });
    }
    function drawn(chart) { if (!chart.u) draw(chart); return chart.u; }

    var seen = "IntersectionObserver" in window ? new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) { if (entry.isIntersecting) drawn(charts.find(function (c) { return c.node === entry.target; })); });
    }, { rootMargin: "400px" }) : null;

    document.querySelectorAll("[data-figure]").forEach(function (node) {
      var figure = data.figures.find(function (f) { return f.id === node.dataset.figure; });
      if (!figure) return;
      var chart = { node: node, figure: figure, plot: node.querySelector(".plot"), tip: node.querySelector(".tip"), u: null };
      charts.push(chart);
      chart.plot.addEventListener("keydown", function (event) { drawn(chart); keys(chart, event); });
      chart.plot.addEventListener("blur", function () { chart.tip.hidden = true; });
      var png = node.querySelector("[data-png]");
      if (png) png.addEventListener("click", function (event) {
        event.preventDefault();
        save(chart);
      });
      if (seen) seen.observe(node); else draw(chart);
    });
    function save(chart) {
      var from = drawn(chart).ctx.canvas, to = document.createElement("canvas"), ratio = devicePixelRatio, head = 28 * ratio;
      to.width = from.width; to.height = from.height + head;
      var c = to.getContext("2d");
      c.fillStyle = css("--paper"); c.fillRect(0, 0, to.width, to.height);
      c.fillStyle = css("--ink"); c.font = "bold " + 13 * ratio + "px system-ui, sans-serif";
      c.fillText(document.title + " – " + chart.figure.title, 8 * ratio, 19 * ratio);
      c.drawImage(from, 0, head);
      var a = document.createElement("a");
      a.download = (chart.figure.metric.replace(/[^\w.-]+/g, "-") || "figure") + ".png";
      a.href = to.toDataURL("image/png");
      a.click();
    }
    function redraw() { charts.forEach(function (chart) { if (chart.u) draw(chart); }); }

    if (tools) {
      var changed = function () {
        options.smooth = Number(tools.elements.smooth.value);
        options.axis = tools.elements.axis.value;
        options.scale = tools.elements.scale.value;
        tools.elements.smoothed.textContent = options.smooth ? options.smooth.toFixed(2) : "off";
        redraw();
      };
      tools.addEventListener("input", changed);
      tools.addEventListener("reset", function () { setTimeout(changed); });
      tools.addEventListener("submit", function (event) { event.preventDefault(); });
    }
    var waiting = 0, width = window.innerWidth;
    window.addEventListener("resize", function () {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 120);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    window.addEventListener("beforeprint", function () { charts.forEach(drawn); });
  }
})();
