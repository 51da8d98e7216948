// Shows the values of each line under the pointer. The pages read without it.
document.querySelectorAll(".figure").forEach(function (figure) {
  var holder = figure.querySelector("script[type='application/json']");
  if (!holder) return;
  var data = JSON.parse(holder.textContent), tip = null;
  if (!data.steps.length) return;
  figure.querySelectorAll("svg.chart").forEach(function (svg) {
    var scale = svg.dataset.x.split(",").map(Number), cross = svg.querySelector(".cross");
    function show(event) {
      var box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      var x = (event.clientX - box.left) * unit;
      var step = scale[0] + (x - scale[2]) / (scale[3] - scale[2]) * (scale[1] - scale[0]);
      var best = 0;
      for (var i = 1; i < data.steps.length; i++) if (Math.abs(data.steps[i] - step) < Math.abs(data.steps[best] - step)) best = i;
      var at = scale[2] + (data.steps[best] - scale[0]) / (scale[1] - scale[0]) * (scale[3] - scale[2]);
      cross.removeAttribute("hidden");
      cross.setAttribute("x1", at);
      cross.setAttribute("x2", at);
      if (!tip) { tip = document.createElement("div"); tip.className = "tip"; figure.appendChild(tip); }
      tip.textContent = "";
      var head = document.createElement("div");
      head.textContent = "step " + data.steps[best];
      tip.appendChild(head);
      data.lines.forEach(function (line) {
        if (line.values[best] === null) return;
        var row = document.createElement("div");
        row.textContent = line.name + "  " + line.values[best];
        row.style.color = line.group ? "var(--c" + ((line.group - 1) % 6 + 1) + ")" : "var(--soft)";
        tip.appendChild(row);
      });
      var left = at / unit + 12, room = figure.clientWidth;
      tip.style.top = (svg.offsetTop || 0) + 18 + "px";
      tip.style.left = (left + tip.offsetWidth > room ? Math.max(0, at / unit - tip.offsetWidth - 12) : left) + "px";
    }
    function hide() {
      cross.setAttribute("hidden", "");
      if (tip) { tip.remove(); tip = null; }
    }
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  });
});
