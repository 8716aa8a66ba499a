// An update as a product of two thin matrices: what is kept of it at a rank, multiplied here.
"use strict";
window.gpuguide ??= {};

// The factors of gpuguide.plotting.interactive.factors: base64 of int16, in rows, and the size of a unit.
gpuguide.unpacked = ({ rows, columns, unit, data }) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const numbers = new DataView(bytes.buffer);
  const values = Float64Array.from({ length: rows * columns }, (_, at) => unit * numbers.getInt16(2 * at, true));
  return { rows, columns, values };
};

// The first columns of B times the first rows of A.
gpuguide.lowRank = (b, a, rank) => {
  const values = new Float64Array(b.rows * a.columns);
  for (let row = 0; row < b.rows; row += 1) {
    for (let at = 0; at < rank; at += 1) {
      const factor = b.values[row * b.columns + at];
      for (let column = 0; column < a.columns; column += 1) {
        values[row * a.columns + column] += factor * a.values[at * a.columns + column];
      }
    }
  }
  return { rows: b.rows, columns: a.columns, values };
};

// How far a product is from the whole update, as a share of its norm, and the share of its squared norm that is kept.
gpuguide.keptOf = (whole, product) => {
  const squares = (all) => all.reduce((sum, value) => sum + value * value, 0);
  const left = squares(whole.values.map((value, at) => value - product.values[at])) / squares(whole.values);
  return { energy: 1 - left, error: Math.sqrt(left) };
};

(() => {
  const SHOWN = 32;  // ranks for which there is room beside the product

  function start(place) {
    const { element } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const [b, a] = [gpuguide.unpacked(known.b), gpuguide.unpacked(known.a)];
    const whole = gpuguide.lowRank(b, a, b.columns);
    const most = Math.min(SHOWN, b.columns);
    const slider = element("input", { type: "range", id: `${figure.id}-rank`, min: 0, max: most, step: 1,
      value: known.first });
    const value = element("output", { for: slider.id, "aria-hidden": "true" });
    const form = element("form", { class: "gg-knobs", autocomplete: "off" },
      element("div", { class: "gg-knob gg-knob-wide" }, element("label", { for: slider.id }, "Rank r", value), slider));
    const answer = element("p", { class: "gg-try-answer", role: "status" });
    const map = (kind, label) => element("canvas", { class: `gg-rank-map ${kind}`, role: "img", "aria-label": label });
    const maps = { b: map("gg-rank-b", "B"), a: map("gg-rank-a", "A"),
      product: map("gg-rank-whole", "The product of B and A"), whole: map("gg-rank-whole", "The update") };
    const named = { a: element("span", {}), b: element("span", {}) };
    const grid = element("div", { class: "gg-rank-grid" },
      element("div", { class: "gg-rank-name" }, named.a), element("div", { class: "gg-rank-above" }, maps.a),
      element("div", { class: "gg-rank-left" }, maps.b), element("div", {}, maps.product),
      element("div", { class: "gg-rank-name gg-rank-first" }, named.b, element("span", {}, "the update")),
      element("div", {}, maps.whole));
    grid.style.setProperty("--columns", a.columns);
    grid.style.setProperty("--ranks", most);
    place.append(form, answer, grid);
    figure.classList.add("gg-tried");

    const colour = (name) => {
      const probe = element("span", { style: `color:var(${name})` });
      place.append(probe);
      const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
      probe.remove();
      return found;
    };
    // Values from -most to most, from blue through the page's ground to orange.
    function paint(canvas, { values, columns: stride }, rows, columns, scale, tones) {
      canvas.width = Math.max(1, columns);
      canvas.height = Math.max(1, rows);
      canvas.hidden = !rows || !columns;
      const context = canvas.getContext("2d");
      const image = context.createImageData(canvas.width, canvas.height);
      for (let row = 0; row < rows; row += 1) {
        for (let column = 0; column < columns; column += 1) {
          const share = Math.max(-1, Math.min(1, values[row * stride + column] / scale));
          const end = share < 0 ? tones.low : tones.high;
          const at = 4 * (row * columns + column);
          for (let part = 0; part < 3; part += 1) {
            image.data[at + part] = tones.ground[part] + Math.abs(share) * (end[part] - tones.ground[part]);
          }
          image.data[at + 3] = 255;
        }
      }
      context.putImageData(image, 0, 0);
    }
    const strength = (all) => 3 * Math.sqrt(all.reduce((sum, each) => sum + each * each, 0) / all.length);

    function draw() {
      const rank = Number(slider.value);
      const tones = { ground: colour("--pst-color-background"), low: colour("--gg-part-weights"),
        high: colour("--gg-part-gradients") };
      const product = gpuguide.lowRank(b, a, rank);
      const scale = strength(whole.values);
      paint(maps.b, b, b.rows, rank, strength(b.values), tones);
      paint(maps.a, a, rank, a.columns, strength(a.values), tones);
      paint(maps.product, product, b.rows, a.columns, scale, tones);
      paint(maps.whole, whole, b.rows, a.columns, scale, tones);
      maps.b.style.width = `${(100 * rank) / most}%`;
      named.a.textContent = `A, ${rank} × ${a.columns}`;
      named.b.textContent = `B, ${b.rows} × ${rank}`;
      const { energy, error } = gpuguide.keptOf(whole, product);
      const [trained, all] = [rank * (b.rows + a.columns), b.rows * a.columns];
      const percent = (share) => `${(100 * share).toFixed(0)}%`;
      value.textContent = String(rank);
      slider.setAttribute("aria-valuetext", `rank ${rank}, ${percent(energy)} kept`);
      answer.textContent = rank === 0
        ? `Rank 0: nothing is trained, and all of the update is missing. It has ${all.toLocaleString("en")} numbers.`
        : `Rank ${rank}: B A keeps ${percent(energy)} of the update's squared norm; the error is ${percent(error)} of its `
          + `size. Trained: ${rank} × (${b.rows} + ${a.columns}) = ${trained.toLocaleString("en")} numbers, `
          + `${percent(trained / all)} of ${all.toLocaleString("en")}.`;
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", draw);
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    draw();
  }
  document.querySelectorAll('.gg-try[data-kind="rank-slider"]').forEach(start);
})();
