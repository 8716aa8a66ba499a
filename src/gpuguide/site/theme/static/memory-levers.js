// Memory over one step of an example, with each way to save memory as a switch: memory.js computes, the drawing is shared.
"use strict";
(() => {
  const place = document.getElementById("gg-memory-levers");
  if (!place) return;
  const { element, data } = gpuguide.calculator;
  const known = data("gg-memory-levers-data");
  const memory = gpuguide.costs.memory(known.memory);
  const drawing = gpuguide.stepDrawing(known.step);
  let last = null;  // the moments that are drawn

  const choice = (name, label, options) => {
    const select = element("select", { id: `gg-lever-${name}`, name });
    options.forEach((text, index) => select.append(element("option", { value: index }, text)));
    return [element("div", { class: "gg-field" }, element("label", { for: select.id }, label), select), select];
  };
  const [exampleField, example] = choice("example", "Example", known.examples.map(({ label }) => label));
  const [layersField, layers] = choice("activations", "Activations", known.activations.map(({ label }) => label));
  const switches = known.switches.map(({ label }, index) => {
    const box = element("input", { type: "checkbox", id: `gg-lever-${index}` });
    return { field: element("div", { class: "gg-field gg-field-flag" }, box, element("label", { for: box.id }, label)), box };
  });
  const fields = element("div", { class: "gg-fields" }, exampleField, layersField, ...switches.map(({ field }) => field));
  const form = element("form", { class: "gg-form", autocomplete: "off" },
    element("fieldset", {}, element("legend", {}, "What the step does"), fields));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", show);
  place.append(form, drawing.figure);

  function show() {
    const chosen = known.examples[example.value];
    const setup = { ...known.setup, ...chosen.setup, ...known.activations[layers.value].fields };
    switches.forEach(({ box, field }, index) => {
      const { fields: changed, when } = known.switches[index];
      field.hidden = when !== null && chosen.setup.activation !== when;
      if (box.checked && !field.hidden) Object.assign(setup, changed);
    });
    const { moments } = memory.predict(chosen.shape, setup);
    drawing.show(moments, known.gpu, last);
    last = moments;
  }
  show();
})();
