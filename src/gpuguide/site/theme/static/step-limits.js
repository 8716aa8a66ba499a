// Which limit holds for a chain of element-wise operations: launches, bytes or FLOPs, launched one by one, in a graph
// and fused. The same model as gpuguide.plotting.interactive.chain_limits.
"use strict";
window.gpuguide ??= {};

gpuguide.chainLimits = (machine, elements, operations, way) => {
  const kernels = way.startsWith("fused") ? 1 : operations;
  return {
    launches: kernels * (way === "one by one" ? machine.launch : machine.graph),
    bytes: (4 * kernels * elements) / machine.bandwidth,
    FLOPs: (elements * operations) / machine.arithmetic,
  };
};

(() => {
  const WAYS = ["one by one", "in a graph", "fused, in a graph"];

  function start(place) {
    const { element, scaled, significant } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const knob = (name, label, most, value) => {
      const slider = element("input", { type: "range", id: `${figure.id}-${name}`, min: name === "elements" ? 10 : 1,
        max: most, step: 1, value });
      const shown = element("output", { for: slider.id, "aria-hidden": "true" });
      const part = element("div", { class: "gg-knob gg-knob-wide" }, element("label", { for: slider.id }, label, shown),
        slider);
      return { slider, shown, part };
    };
    const elements = knob("elements", "Elements of each array", 28, known.elements);
    const operations = knob("operations", "Operations in a row", 64, known.operations);
    const form = element("form", { class: "gg-knobs", autocomplete: "off" }, elements.part, operations.part);
    const answer = element("p", { class: "gg-try-answer", role: "status" });
    const bars = element("div", { class: "gg-limits" });
    place.append(form, answer, bars);
    figure.classList.add("gg-tried");

    function draw() {
      const size = 2 ** Number(elements.slider.value);
      const count = Number(operations.slider.value);
      elements.shown.textContent = size.toLocaleString("en");
      operations.shown.textContent = String(count);
      elements.slider.setAttribute("aria-valuetext", `${size.toLocaleString("en")} elements`);
      const found = WAYS.map((way) => ({ way, limits: gpuguide.chainLimits(known.machine, size, count, way) }))
        .map(({ way, limits }) => {
          const [holds, seconds] = Object.entries(limits).reduce((one, other) => (other[1] > one[1] ? other : one));
          return { way, limits, holds, seconds };
        });
      const longest = found[0].seconds;
      bars.replaceChildren(...found.flatMap(({ way, limits, holds }) => Object.entries(limits).flatMap(([name, time]) => [
        element("span", {}, `${way}: ${name}`),
        element("span", {}, element("span", { class: "gg-limit-bar", "data-holds": String(name === holds),
          style: `width: ${Math.max(0.3, (100 * time) / longest).toFixed(2)}%` })),
        element("span", {}, scaled(time, "s")),
      ])));
      const [eager, graph, fused] = found;
      const faster = ({ holds, seconds }) => `${scaled(seconds, "s")} (limit: ${holds}), `
        + `${significant(eager.seconds / seconds)} times as fast`;
      answer.textContent = `One by one, ${eager.holds} are the limit, and the model predicts `
        + `${scaled(eager.seconds, "s")}. In a graph it predicts ${faster(graph)}, and fused ${faster(fused)}.`;
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", draw);
    draw();
  }
  document.querySelectorAll('.gg-try[data-kind="step-limits"]').forEach(start);
})();
