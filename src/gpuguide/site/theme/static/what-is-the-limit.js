// The calculator of limits: reads the form, asks limits.js, and draws a roofline.
"use strict";
(() => {
  const place = document.getElementById("gg-what-is-the-limit");
  if (!place) return;
  const { element, svg, scaled, binary, significant, Form, formField, fromAddress, toAddress, table, refuse, code, python,
    data } = gpuguide.calculator;
  const known = data("gg-what-is-the-limit-data");
  const limits = gpuguide.costs.limits(known.limits);
  const first = known.first;

  const models = known.models.map(({ id, name, family }) => ({ value: id, label: name, group: family }));
  const fields = known.fields.map((field) => (field.name === "model"
    ? { name: "model", label: field.label, kind: "choice", options: models } : formField(field)));
  const names = fields.map((field) => field.name);
  const groups = [
    { title: "What", fields: [
      { name: "operation", label: "Operation", kind: "choice",
        options: Object.entries(known.operations).map(([value, label]) => ({ value, label })) },
      { name: "gpu", label: "GPU", kind: "choice",
        options: known.machines.map(({ id, name }) => ({ value: id, label: name })) },
    ] },
    { title: "Size", fields },
  ];
  const form = new Form(place, groups, changed);
  const verdict = element("p", { class: "gg-verdict-line", role: "status" });
  const answer = element("div", { class: "gg-answer" });
  const said = element("div", {});
  place.append(verdict, said, answer);

  const BOUNDS = { arithmetic: "arithmetic", memory: "memory bandwidth", link: "the link between GPUs",
    host: "the connection to the host", launch: "the start of a kernel" };
  const asked = (operation) => Object.keys(known.examples[operation]);
  const given = (state) => Object.fromEntries(asked(state.operation).map((name) => [name, state[name]]));
  const shapeOf = (id) => known.models.find((model) => model.id === id).shape;

  function changed(name) {
    if (name === "operation") form.write(known.examples[form.read().operation]);
    show([]);
  }

  function show(remarks) {
    const state = form.read();
    const wanted = asked(state.operation);
    form.show(Object.fromEntries(names.map((name) => [name, wanted.includes(name)])));
    const { model, ...input } = given(state);
    const shape = model ? shapeOf(model) : null;
    const machine = known.machines.find((each) => each.id === state.gpu);
    const faults = limits.faults(state.operation, input, shape);
    let cost = null;
    if (!Object.keys(faults).length) {
      cost = limits.cost(state.operation, input, shape);
      const lack = limits.lacking(cost, machine);
      if (lack) faults[lack.includes("no rate") && "format" in input ? "format" : "gpu"] = lack;
    }
    const wrong = form.judge(faults);
    toAddress({ operation: state.operation, gpu: state.gpu, ...given(state) },
      { ...first, ...known.examples[state.operation] });
    const advice = wrong.length ? elsewhere(state, cost, machine) : [];
    if (refuse({ verdict, said, answer }, remarks, wrong, ...advice)) return;
    const found = limits.limit(cost, machine);
    verdict.replaceChildren(element("strong", {}, `${scaled(found.time, "s")} at these ceilings, `),
      `bound by ${BOUNDS[found.bound]}, on ${machine.name}.`);
    answer.replaceChildren(roofline(found, machine), times(found), counts(found),
      ceilings(found, machine), call(state));
  }

  // Where to ask what would make a model fit.
  function elsewhere(state, cost, machine) {
    if (!cost || state.operation !== "decode" || cost.held <= machine.capacity) return [];
    const query = new URLSearchParams({ purpose: "generate", precision: state.weights, cache: state.cache,
      model: state.model, gpu: state.gpu, batch: state.batch, seq_len: state.context });
    return [" ", element("a", { href: `will-it-fit.html?${query}` }, "What would make it fit?")];
  }

  // --- the picture -----------------------------------------------------------------------------------------

  function roofline(found, machine) {
    const [width, height] = place.clientWidth < 520 ? [380, 300] : [640, 360];  // text keeps its size on a phone
    const [left, bottom, top, right] = [58, 46, 26, 16];
    const intensities = [Math.min(found.intensity, found.ridge) / 8, Math.max(found.intensity, found.ridge) * 8];
    const rates = [Math.min(found.throughput, intensities[0] * found.bandwidth.value) / 3, found.rate.value * 3];
    const scale = (range, from, to) => (value) => {
      const [low, high] = range.map(Math.log10);
      return from + ((Math.log10(value) - low) / (high - low)) * (to - from);
    };
    const x = scale(intensities, left, width - right);
    const y = scale(rates, height - bottom, top);
    const line = (points, kind) => svg("polyline", { class: kind, points: points.map(([a, b]) =>
      `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") });
    const text = (at, down, words, anchor = "middle") => {
      const made = svg("text", { x: at.toFixed(1), y: down.toFixed(1), "text-anchor": anchor });
      made.textContent = words;
      return made;
    };
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "gg-roofline" });
    picture.setAttribute("aria-label", `Roofline of ${machine.name}: the operation does ${significant(found.intensity)} `
      + `operations per byte and reaches ${scaled(found.throughput, "FLOP/s")} at these ceilings; the roof bends at `
      + `${significant(found.ridge)} operations per byte.`);
    for (const power of powers(intensities)) {
      picture.append(line([[power, rates[0]], [power, rates[1]]], "gg-grid"),
        text(x(power), height - bottom + 18, plain(power)));
    }
    for (const power of powers(rates)) {
      picture.append(line([[intensities[0], power], [intensities[1], power]], "gg-grid"),
        text(left - 8, y(power) + 4, plain(power), "end"));
    }
    const low = intensities[0] * found.bandwidth.value;
    picture.append(line([[intensities[0], low], [found.ridge, found.rate.value]],
      found.bandwidth.origin === "measured" ? "gg-roof" : "gg-roof gg-printed"));
    picture.append(line([[found.ridge, found.rate.value], [intensities[1], found.rate.value]],
      found.rate.origin === "measured" ? "gg-roof" : "gg-roof gg-printed"));
    picture.append(line([[found.intensity, rates[0]], [found.intensity, found.throughput]], "gg-drop"));
    picture.append(svg("circle", { class: "gg-point", cx: x(found.intensity).toFixed(1),
      cy: y(found.throughput).toFixed(1), r: 6 }));
    const side = x(found.intensity) > width / 2 ? -1 : 1;
    picture.append(text(x(found.intensity) + 12 * side, y(found.throughput) + 18, scaled(found.throughput, "FLOP/s"),
      side > 0 ? "start" : "end"));
    picture.append(text((left + width - right) / 2, height - 6, "arithmetic intensity, FLOP/B"));
    picture.append(text(left - 8, top - 10, "FLOP/s", "end"));
    const caption = "The slope is the bandwidth, the flat part the rate of arithmetic; a solid line is measured, a dashed "
      + "one printed by the vendor. The dot is where the operation can be at best.";
    return element("figure", { class: "gg-drawing" }, picture, element("figcaption", {}, caption));
  }
  function powers([low, high]) {
    const found = [];
    const step = Math.max(1, Math.ceil((Math.log10(high) - Math.log10(low)) / 8));
    for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += step) found.push(10 ** power);
    return found;
  }
  const plain = (value) => (value >= 1e4 ? scaled(value, "").replace(/\.0+(?= )/, "") : String(+value.toPrecision(2)));

  // --- the tables ------------------------------------------------------------------------------------------

  function times(found) {
    const rows = [["arithmetic", scaled(found.arithmetic_time, "s")],
      [`bytes through ${known.channels[found.operation.through]}`, scaled(found.moving_time, "s")],
      ["start of a kernel", found.launch_time ? scaled(found.launch_time, "s") : "not measured"],
      ["at least, as they go on at once", scaled(found.time, "s")]];
    return table("Time of each part, at its ceiling", ["part", "time"], rows);
  }
  function counts(found) {
    return table("What is counted", ["quantity", "value"], [["operations", scaled(found.operation.flops, "FLOP")],
      ["bytes that move", binary(found.operation.moved)],
      ["arithmetic intensity", `${significant(found.intensity)} FLOP/B`],
      ["intensity at the bend", `${significant(found.ridge)} FLOP/B`]]);
  }
  function ceilings(found, machine) {
    const through = found.operation.through === "link" ? machine.link_name : known.channels[found.operation.through];
    const from = { measured: "measured by us", datasheet: "from a data sheet" };
    return table(`Ceilings of ${machine.name}`, ["ceiling", "value", "source"], [
      [`products in ${found.operation.format}`, scaled(found.rate.value, "FLOP/s"), from[found.rate.origin]],
      [through, scaled(found.bandwidth.value, "B/s"), from[found.bandwidth.origin]],
      ["start of a kernel", found.launch_time ? scaled(found.launch_time, "s") : "–",
        found.launch_time ? from.measured : "not measured"]]);
  }
  function call(state) {
    const name = { decode: "decode_step" }[state.operation] ?? state.operation;
    const words = asked(state.operation).map((field) => (field === "model"
      ? `presets.get(${python(state.model)}).shape` : `${field}=${python(state[field])}`)).join(", ");
    const text = "from gpuguide.costs import limits, presets\nfrom gpuguide.measure import measured_ceilings\n\n"
      + `operation = limits.${name}(${words})\n`
      + `limits.limit(operation, measured_ceilings.load(${python(state.gpu)})).time`;
    return element("details", { class: "gg-fold" }, element("summary", {}, "The same in Python"), code(text));
  }

  const wish = new URLSearchParams(location.search).get("operation");
  const start = { ...first, ...Object.assign({}, ...Object.values(known.examples).reverse()),
    ...known.examples[wish in known.examples ? wish : first.operation] };
  const { state, notices: remarks } = fromAddress(form, start);
  form.write(state);
  show(remarks);
})();
