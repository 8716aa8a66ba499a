// The calculator of transfers: reads the form, asks transfers.js, and draws all links to scale.
"use strict";
(() => {
  const place = document.getElementById("gg-how-long-to-move");
  if (!place) return;
  const { element, scaled, significant, binary, percent, Form, formField, fromAddress, toAddress, table, refuse, code, python,
    data } = gpuguide.calculator;
  const known = data("gg-how-long-to-move-data");
  const transfers = gpuguide.costs.transfers(known.transfers);
  const first = known.first;

  const models = known.models.map(({ id, name, family }) => ({ value: id, label: name, group: family }));
  const fields = known.fields.map((field) => (field.name === "model"
    ? { name: "model", label: field.label, kind: "choice", options: models } : formField(field)));
  const names = fields.map((field) => field.name);
  const linkOf = (id) => known.links.find((link) => link.id === id);
  // Gradients and activations go from GPU to GPU, and not through storage.
  const linksFor = (what) => known.links.filter((link) => known.over[what].includes(link.joins));
  const linkOptions = ({ what }) => linksFor(what ?? first.what)
    .map(({ id, name, joins }) => ({ value: id, label: name, group: known.joins[joins] }));
  const groups = [
    { title: "What, and over what", fields: [
      { name: "what", label: "To move", kind: "choice",
        options: Object.entries(known.things).map(([value, label]) => ({ value, label })) },
      { name: "link", label: "Link", kind: "choice", options: linkOptions },
    ] },
    { title: "Size", fields },
    { title: "How well the link is used", fields: known.transfers.way.map(formField) },
  ];
  const form = new Form(place, groups, changed);
  const verdict = element("p", { class: "gg-verdict-line", role: "status" });
  const answer = element("div", { class: "gg-answer" });
  const said = element("div", {});
  place.append(verdict, said, answer);

  const asked = (what) => Object.keys(known.examples[what]);
  const given = (state) => Object.fromEntries(asked(state.what).map((name) => [name, state[name]]));
  const shapeOf = (id) => known.models.find((model) => model.id === id).shape;
  // Seconds, as people count them.
  function duration(seconds) {
    const [unit, size] = [["days", 86400], ["h", 3600], ["min", 60]].find(([, least]) => seconds >= 2 * least) ?? ["", 1];
    return unit ? `${significant(seconds / size)} ${unit}` : scaled(seconds, "s");
  }
  const printed = (seconds) => (seconds >= 1e9 ? "more than 30 years" : duration(seconds));

  function changed(name) {
    if (name === "what") {
      const { what, link } = form.read();
      form.write(known.examples[what]);
      form.options("link", linkOptions({ what }), link);
    }
    show([]);
  }

  function show(remarks) {
    const state = form.read();
    const wanted = asked(state.what);
    form.show(Object.fromEntries(names.map((name) => [name, wanted.includes(name)])));
    const { model, ...input } = given(state);
    const shape = model ? shapeOf(model) : null;
    const way = { share: state.share, latency: state.latency };
    const wrong = form.judge({ ...transfers.faults(state.what, input, shape), ...transfers.wayFaults(way) });
    toAddress({ what: state.what, link: state.link, ...given(state), ...way },
      { ...first, ...known.examples[state.what] });
    if (refuse({ verdict, said, answer }, remarks, wrong)) return;
    const what = transfers.transfer(state.what, input, shape);
    const link = linkOf(state.link);
    verdict.replaceChildren(element("strong", {}, printed(transfers.time(what, link.rate, way))), ` ${over(link, way)}.`);
    answer.replaceChildren(all(what, state, way), counts(what, link, way), rates(link), call(state));
  }

  function over(link, { share, latency }) {
    const rate = share === 100 ? `at least, at the full rate of ${link.name}`
      : `at ${share}% of the rate of ${link.name}`;
    return latency ? `${rate}, with ${scaled(latency * 1e-9, "s")} of latency a transfer` : rate;
  }

  // --- the tables ------------------------------------------------------------------------------------------

  // Every link that could carry it, with its rate as a bar: one scale for all, from zero.
  function all(what, state, way) {
    const links = linksFor(state.what);
    const most = Math.max(...links.map((link) => link.rate));
    const rows = links.map((link) => {
      const name = link.id === state.link ? element("strong", {}, link.name) : link.name;
      const bar = element("span", { class: `gg-rate${link.id === state.link ? " gg-chosen" : ""}`, "aria-hidden": "true" });
      bar.style.width = `${(100 * link.rate) / most}%`;
      return [[name, bar], scaled(link.rate, "B/s"), printed(transfers.time(what, link.rate, way))];
    });
    const caption = "All links that could carry it. A bar is the rate in one direction, and all have one scale";
    const made = table(caption, ["link", "rate, one way", "time"], rows);
    made.querySelector("table").classList.add("gg-links");
    return made;
  }
  function counts(what, link, way) {
    const waiting = what.messages * way.latency * 1e-9;
    return table("What crosses the link, and what takes the time", ["quantity", "value"], [
      ["bytes, one way, at each GPU", binary(what.moved)],
      ["transfers that wait for one another", what.messages.toLocaleString("en")],
      ["bytes of each", what.messages ? binary(what.moved / what.messages) : "–"],
      ["time of the bytes", printed(transfers.time(what, link.rate, { ...way, latency: 0 }))],
      ["time of the latencies", way.latency ? printed(waiting) : "none given"]]);
  }
  function rates(link) {
    const rows = [["on the wire", link.raw === null ? "not printed" : scaled(link.raw, "B/s")],
      ["after coding: 100%", scaled(link.rate, "B/s")],
      ["left for data by headers, at best", link.payload === null ? "not printed"
        : `${scaled(link.payload, "B/s")}, ${percent(link.payload / link.rate)}`],
      [link.measured ? `measured by us, ${link.measured.what}` : "measured by us", link.measured
        ? `${scaled(link.measured.value, "B/s")}, ${percent(link.measured.value / link.rate)}` : "no record yet"]];
    if (link.total !== null) rows.push(["printed by the vendor, both ways together", scaled(link.total, "B/s")]);
    return table(`Rates of ${link.name}, one way`, ["rate", "value"], rows);
  }
  function call(state) {
    const way = python(state.link) + (state.latency ? `, latency=${state.latency}e-9` : "")
      + (state.share === 100 ? "" : `, efficiency=${state.share / 100}`);
    const words = asked(state.what).map((field) => (field === "model"
      ? `presets.shape(${python(state.model)})` : `${field}=${python(state[field])}`)).join(", ");
    const name = known.calls[state.what];
    const text = name ? `from gpuguide.costs import presets\nfrom gpuguide.interconnect import ${name}, time_to_move\n\n`
      + `what = ${name}(${words})\ntime_to_move(what, ${way})`
      : `from gpuguide.interconnect import time_to_move\n\ntime_to_move(${python(state.size)}, ${way})`;
    return element("details", { class: "gg-fold" }, element("summary", {}, "The same in Python"), code(text));
  }

  const wish = new URLSearchParams(location.search).get("what");
  const start = { ...first, ...Object.assign({}, ...Object.values(known.examples).reverse()),
    ...known.examples[wish in known.examples ? wish : first.what] };
  const { state, notices: remarks } = fromAddress(form, start);
  form.options("link", linkOptions(state), state.link);
  form.write(state);
  show(remarks);
})();
