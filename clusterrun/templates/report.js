"use strict";
for (const figure of document.querySelectorAll("figure.chart")) {
  const lines = JSON.parse(figure.dataset.lines);
  const [first, last] = JSON.parse(figure.dataset.domain);
  const [plot, cursor, output] = [".plot", ".cursor", "output"].map(name => figure.querySelector(name));
  const steps = [...new Set(lines.flatMap(line => line.points.map(point => point[0])))].sort((a, b) => a - b);
  const written = value => value === null ? "no number" : value.toLocaleString("en", {maximumSignificantDigits: 5});
  let at = steps.length - 1;
  function valueAt(line, step) {
    const points = line.points;
    if (step < points[0][0] || step > points[points.length - 1][0]) return "";
    const near = points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
    return `${line.name} ${written(near[1])}` + (near[0] === step ? "" : ` (at ${written(near[0])})`);
  }
  function show(to) {
    at = Math.max(0, Math.min(steps.length - 1, to));
    const step = steps[at];
    const values = lines.map(line => valueAt(line, step)).filter(Boolean).join(", ");
    output.textContent = `${figure.dataset.over} ${written(step)}: ${values}`;
    cursor.style.left = `${100 * (step - first) / (last - first)}%`;
    cursor.hidden = false;
    plot.setAttribute("aria-valuenow", step);
    plot.setAttribute("aria-valuetext", output.textContent);
  }
  function hide() {
    cursor.hidden = true;
    output.textContent = "";
  }
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-valuemin", steps[0]);
  plot.setAttribute("aria-valuemax", steps[steps.length - 1]);
  plot.setAttribute("aria-valuenow", steps[at]);
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    const step = first + (event.clientX - box.left) / box.width * (last - first);
    const after = steps.findIndex(other => other >= step);
    if (after < 1) show(after < 0 ? steps.length - 1 : 0);
    else show(steps[after] - step < step - steps[after - 1] ? after : after - 1);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("focus", () => show(at));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", event => {
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: steps.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}
