// The knobs of sampling on one prediction: what temperature, top-k, top-p and min-p leave of it, in this order.
"use strict";
window.gpuguide ??= {};

// Mirrors gpuguide.logits.adjust. The logits fall from 0; of each token, the probability of being drawn.
gpuguide.sampling = (logits, { temperature, top_k, top_p, min_p }) => {
  const softmax = (row) => {
    const powers = row.map(Math.exp);
    const sum = powers.reduce((all, each) => all + each, 0);
    return powers.map((each) => each / sum);
  };
  const keep = (row, smallest) => row.map((each) => (each < smallest ? -Infinity : each));
  let row = temperature === 0 ? logits.map((_, place) => (place ? -Infinity : 0))
    : logits.map((each) => each / temperature);
  if (top_k > 0 && top_k < row.length) row = keep(row, row[top_k - 1]);
  if (top_p < 1) {
    let before = 0;
    let last = 0;
    softmax(row).forEach((share, place) => {
      if (before < top_p) last = place;
      before += share;
    });
    row = keep(row, row[last]);
  }
  if (min_p > 0) row = keep(row, Math.log(min_p));
  return softmax(row);
};

(() => {
  const KNOBS = [
    { name: "temperature", label: "Temperature", min: 0, max: 3, step: 0.05, write: (value) => value.toFixed(2) },
    { name: "top_k", label: "Top-k", min: 0, max: 50, step: 1, write: (value) => (value ? String(value) : "off") },
    { name: "top_p", label: "Top-p", min: 0.05, max: 1, step: 0.05,
      write: (value) => (value < 1 ? value.toFixed(2) : "off") },
    { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, write: (value) => (value ? value.toFixed(2) : "off") },
  ];

  function start(place) {
    const { element } = gpuguide.calculator;
    const { logits, names, first } = JSON.parse(place.querySelector("script").textContent);
    const own = gpuguide.sampling(logits, { temperature: 1, top_k: 0, top_p: 1, min_p: 0 });
    const id = place.closest("figure").id;
    const inputs = new Map();
    const form = element("form", { class: "gg-knobs", autocomplete: "off" });
    for (const { name, label, min, max, step } of KNOBS) {
      const input = element("input", { type: "range", id: `${id}-${name}`, min, max, step, value: first[name] });
      const value = element("output", { for: input.id, "aria-hidden": "true" });
      inputs.set(name, { input, value });
      form.append(element("div", { class: "gg-knob" }, element("label", { for: input.id }, label, " ", value), input));
    }
    const reset = element("button", { type: "button", class: "gg-apply" }, "Reset");
    form.append(reset);
    const summary = element("p", { class: "gg-try-answer", role: "status" });
    const others = logits.length - names.length;
    const rows = [...names, ...(others ? [`${others} others`] : [])].map((name, at) => {
      const bar = element("span", { class: "gg-share" });
      const ghost = element("span", { class: "gg-share gg-share-own" });
      const value = element("td", {});
      const row = element("tr", {}, element("th", { scope: "row" },
        at < names.length ? element("code", {}, name) : name), element("td", { class: "gg-share-cell" }, ghost, bar), value);
      return { row, bar, ghost, value };
    });
    const head = element("thead", {}, element("tr", {}, ...["token", "as a bar", "probability"].map((name) =>
      element("th", { scope: "col" }, name))));
    const table = element("table", { class: "gg-shares" }, head,
      element("tbody", {}, ...rows.map(({ row }) => row)));
    const sum = (all) => all.reduce((one, other) => one + other, 0);
    const inRows = (shares) => [...shares.slice(0, names.length), sum(shares.slice(names.length))];
    const percent = (share) => (share === 0 ? "–" : share < 0.0005 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`);

    function changed() {
      const settings = {};
      for (const { name, write } of KNOBS) {
        const { input, value } = inputs.get(name);
        settings[name] = Number(input.value);
        value.textContent = write(settings[name]);
        input.setAttribute("aria-valuetext", write(settings[name]));
      }
      const shares = gpuguide.sampling(logits, settings);
      const [now, before] = [inRows(shares), inRows(own)];
      const widest = Math.max(...now, ...before);
      rows.forEach(({ row, bar, ghost, value }, at) => {
        bar.style.width = `${(100 * now[at]) / widest}%`;
        ghost.style.width = `${(100 * before[at]) / widest}%`;
        value.textContent = percent(now[at]);
        row.classList.toggle("gg-dropped", now[at] === 0);
      });
      const left = shares.filter((share) => share > 0).length;
      const entropy = -sum(shares.filter((share) => share > 0).map((share) => share * Math.log(share)));
      summary.textContent = `${left} of ${logits.length} tokens can be drawn; the entropy is `
        + `${Math.abs(entropy).toFixed(2)} nats.`;
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", changed);
    reset.addEventListener("click", () => {
      const plain = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };
      for (const [name, { input }] of inputs) input.value = plain[name];
      changed();
    });
    place.append(form, summary, table);
    place.closest("figure").classList.add("gg-tried");
    changed();
  }
  document.querySelectorAll('.gg-try[data-kind="sampling-knobs"]').forEach(start);
})();
