// The online softmax of one query, tile of keys after tile, forwards and back.
"use strict";
window.gpuguide ??= {};

// Mirrors gpuguide.attention.tiled: of each tile, the state after it. The query sees the first `visible` keys.
gpuguide.onlineSoftmax = (scores, values, { tile, visible }) => {
  const steps = [];
  let [m, l, acc, keysRead] = [-Infinity, 0, 0, 0];
  for (let first = 0; first < scores.length; first += tile) {
    const last = Math.min(first + tile, scores.length);
    const before = { m, l, acc };
    const skipped = first >= visible;
    let [alpha, sum, weighted] = [1, 0, 0];
    if (!skipped) {
      m = Math.max(m, ...scores.slice(first, Math.min(last, visible)));
      alpha = Math.exp(before.m - m);
      for (let key = first; key < Math.min(last, visible); key += 1) {
        const p = Math.exp(scores[key] - m);
        sum += p;
        weighted += p * values[key];
      }
      l = alpha * l + sum;
      acc = alpha * acc + weighted;
      keysRead += last - first;
    }
    steps.push({ first, last, skipped, before, alpha, sum, weighted, m, l, acc, keysRead });
  }
  return { steps, output: acc / l };
};

// The softmax over all scores at once, which the state above must end with.
gpuguide.fullSoftmax = (scores, values, visible) => {
  const seen = scores.slice(0, visible);
  const most = Math.max(...seen);
  const powers = seen.map((score) => Math.exp(score - most));
  const total = powers.reduce((all, each) => all + each, 0);
  return powers.reduce((all, power, key) => all + (power / total) * values[key], 0);
};

// Bytes through the GPU's memory for one query: standard attention in all, and tiles after `keysRead` keys.
gpuguide.attentionBytes = ({ keys, keysRead, causal, head_dim, element_size, score_passes }) => {
  const row = 2 * head_dim * element_size;  // a key and its value
  const passes = score_passes[causal ? "causal" : "plain"];
  return { storedRows: keys * row, storedScores: passes * keys * element_size, tiledRows: keysRead * row,
    tiledScores: 0 };
};

(() => {
  const TILES = [1, 2, 4];
  const LARGEST = 1000;  // of a score: exp would overflow long before, without the maximum

  function start(place) {
    const { element, binary } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const { id } = figure;
    const count = known.scores.length;
    const short = (value, digits = 3) => (value === -Infinity ? "−∞" : value !== 0 && Math.abs(value) < 5e-4 ? "< 0.001"
      : String(Number(value.toPrecision(digits))).replace("-", "−"));
    const sized = (bytes) => (bytes < 1024 ? `${bytes} B` : binary(bytes));
    let keys = [];
    let at = 1;  // 0: no tile yet; one more than there are tiles: divided
    let ended = false;

    const tile = element("select", { id: `${id}-tile` }, ...TILES.map((size) =>
      element("option", { value: size, selected: size === known.tile }, size === 1 ? "1 key" : `${size} keys`)));
    const mask = element("select", { id: `${id}-mask` }, element("option", { value: 0 }, "none"),
      ...known.scores.map((_, key) => element("option", { value: key + 1 }, `causal, query ${key + 1}`)));
    const button = (words, act, kind = "") => {
      const made = element("button", { type: "button", class: `gg-press ${kind}`.trim() }, words);
      made.addEventListener("click", act);
      return made;
    };
    const back = button("← Back", () => go(at - 1));
    const next = button("Next →", () => go(at + 1), "gg-press-first");
    const form = element("form", { class: "gg-knobs", autocomplete: "off" },
      element("div", { class: "gg-knob" }, element("label", { for: tile.id }, "Keys in a tile"), tile),
      element("div", { class: "gg-knob" }, element("label", { for: mask.id }, "Mask"), mask),
      element("div", { class: "gg-presses" }, back, next, button("Shuffle the keys", shuffle), button("Reset", reset)));
    const answer = element("p", { class: "gg-try-answer gg-softmax-answer", role: "status" });

    const columns = known.scores.map((_, key) => {
      const input = element("input", { type: "number", step: "any", min: -LARGEST, max: LARGEST,
        id: `${id}-score-${key}`, "aria-label": `Score of key ${key + 1}` });
      const ghost = element("span", { class: "gg-softmax-bar gg-softmax-before" });
      const bar = element("span", { class: "gg-softmax-bar" });
      const power = element("span", { class: "gg-softmax-power" });
      const value = element("span", { class: "gg-softmax-value" });
      const column = element("div", { class: "gg-softmax-key" }, input,
        element("span", { class: "gg-softmax-shaft", "aria-hidden": "true" }, ghost, bar), power, value);
      input.addEventListener("input", () => {
        const given = input.value === "" ? NaN : Number(input.value);
        const good = Number.isFinite(given) && Math.abs(given) <= LARGEST;
        input.setAttribute("aria-invalid", String(!good));
        if (good) {
          keys[key] = { ...keys[key], score: given };
          draw();
        } else answer.textContent = `A score is a number from −${LARGEST} to ${LARGEST}; the last one stays.`;
      });
      return { column, input, ghost, bar, power, value };
    });
    const names = element("div", { class: "gg-softmax-names", "aria-hidden": "true" }, element("span", {}, "score"),
      element("span"), element("span", {}, "exp(s − m_i)"),
      element("span", {}, "value"));
    const stage = element("div", { class: "gg-softmax-stage", tabindex: 0, role: "group",
      "aria-label": "Keys of one query; the left and right arrow keys step" }, names,
    ...columns.map(({ column }) => column));
    const trace = element("tbody");
    const heads = ["tile", "maximum m_i", "alpha", "sum l_i", "acc"];
    const states = element("table", { class: "gg-states" }, element("thead", {}, element("tr", {},
      ...heads.map((name) => element("th", { scope: "col" }, name)))), trace);
    const bytes = element("tbody");
    const moved = element("table", { class: "gg-states" }, element("caption", {},
      `Bytes through memory for this query, with heads of ${known.head_dim} numbers in bf16`), element("thead", {},
      element("tr", {}, ...["bytes", "standard attention", "tiles, so far"].map((name) =>
        element("th", { scope: "col" }, name)))), bytes);

    const visibleKeys = () => Number(mask.value) || count;
    const tiles = () => Math.ceil(count / Number(tile.value));

    function go(to) {
      at = Math.min(Math.max(to, 0), tiles() + 1);
      draw();
    }
    function reset() {
      keys = known.scores.map((score, key) => ({ score, value: known.values[key] }));
      columns.forEach(({ input }) => input.removeAttribute("aria-invalid"));
      tile.value = known.tile;
      mask.value = 0;
      go(1);
    }
    function shuffle() {
      for (let last = count - 1; last > 0; last -= 1) {
        const other = Math.floor(Math.random() * (last + 1));
        [keys[last], keys[other]] = [keys[other], keys[last]];
      }
      columns.forEach(({ input }) => input.removeAttribute("aria-invalid"));
      draw();
    }

    function told({ steps, output }, full) {
      if (at === 0) return "No key has been seen: the maximum is −∞, and both sums are 0.";
      if (at > steps.length) {
        const { acc, l } = steps.at(-1);
        const off = Math.abs(output - full) / Math.max(Math.abs(full), 1e-300);
        const same = off <= 1e-6 ? "equal to 1e-6" : `not equal: off by ${off.toExponential(1)}`;
        return `Divide: acc / l_i = ${short(acc)} / ${short(l)} = ${output.toFixed(6)}. The softmax of all scores at `
          + `once gives ${full.toFixed(6)}: ${same}.`;
      }
      const { first, last, skipped, before, alpha, sum, weighted, m, l, acc } = steps[at - 1];
      const which = `Tile ${at} of ${steps.length}`;
      if (skipped) return `${which} lies behind the causal mask. It is skipped: neither read nor computed.`;
      const hidden = Math.max(0, last - Math.max(first, visibleKeys()));
      const masked = hidden ? ` The mask sets ${hidden} of its scores to −∞.` : "";
      const change = before.m === -Infinity ? `the maximum is ${short(m)}`
        : m > before.m ? `the maximum jumps from ${short(before.m)} to ${short(m)}, so alpha = exp(${short(before.m)} − `
          + `${m < 0 ? `(${short(m)})` : short(m)}) = ${short(alpha)} shrinks both sums`
          : `the maximum stays ${short(m)}, so alpha is 1`;
      return `${which}: ${change}.${masked} l_i = ${short(alpha)} × ${short(before.l)} + ${short(sum)} = ${short(l)}; `
        + `acc = ${short(alpha)} × ${short(before.acc)} + ${short(weighted)} = ${short(acc)}.`;
    }

    function draw() {
      const size = Number(tile.value);
      const visible = visibleKeys();
      const scores = keys.map(({ score }) => score);
      const values = keys.map(({ value }) => value);
      const result = gpuguide.onlineSoftmax(scores, values, { tile: size, visible });
      const { steps } = result;
      ended = at > steps.length;
      const now = ended ? steps.at(-1) : steps[at - 1];
      columns.forEach(({ column, input, ghost, bar, power, value }, key) => {
        const mine = Math.floor(key / size);
        const seen = Boolean(now) && mine < Math.min(at, steps.length) && key < visible;
        const state = key >= visible ? "hidden" : !seen ? "ahead" : !ended && mine === at - 1 ? "now" : "seen";
        column.dataset.state = state;
        column.classList.toggle("gg-softmax-opens", key % size === 0);
        column.classList.toggle("gg-softmax-closes", (key + 1) % size === 0 || key + 1 === count);
        if (input.getAttribute("aria-invalid") !== "true" && Number(input.value || NaN) !== scores[key]) {
          input.value = scores[key];
        }
        const share = seen ? Math.exp(scores[key] - now.m) : 0;
        // What the key added before this step: larger by alpha, or by the sum where the end divides.
        const was = !seen || state === "now" ? 0 : ended ? share : Math.exp(scores[key] - now.before.m);
        const is = ended ? share / now.l : share;
        bar.style.height = `${100 * is}%`;
        ghost.style.height = `${100 * was}%`;
        power.textContent = state === "hidden" ? "masked" : seen ? short(is, 2) : "–";
        value.textContent = String(values[key]);
      });
      names.children[2].textContent = ended ? "weight" : "exp(s − m_i)";
      trace.replaceChildren(...steps.map((step, place) => {
        const past = place < at;
        const cells = !past ? ["", "", "", ""] : step.skipped ? ["skipped", "", short(step.l), short(step.acc)]
          : [short(step.m), short(step.alpha), short(step.l), short(step.acc)];
        return element("tr", { class: place === at - 1 ? "gg-states-now" : null },
          element("th", { scope: "row" }, String(place + 1)), ...cells.map((text) => element("td", {}, text)));
      }));
      const read = at === 0 ? 0 : now.keysRead;
      const sizes = gpuguide.attentionBytes({ ...known, keys: count, keysRead: read, causal: mask.value !== "0" });
      bytes.replaceChildren(...[["keys and values read", sizes.storedRows, sizes.tiledRows],
        ["scores written and read again", sizes.storedScores, sizes.tiledScores]].map(([name, stored, tiled]) =>
        element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, sized(stored)),
          element("td", {}, sized(tiled)))));
      back.setAttribute("aria-disabled", String(at === 0));
      next.setAttribute("aria-disabled", String(ended));
      answer.textContent = told(result, gpuguide.fullSoftmax(scores, values, visible));
    }

    form.addEventListener("submit", (event) => event.preventDefault());
    // Who has come to the end stays there, and sees that the result does not depend on the tiles.
    form.addEventListener("input", () => go(ended ? Infinity : Math.min(at, 1)));
    place.addEventListener("keydown", (event) => {
      if (event.target.matches("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tiles() + 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      go(to);
    });
    place.append(form, answer, stage, states, moved);
    figure.classList.add("gg-tried");
    reset();
  }
  document.querySelectorAll('.gg-try[data-kind="online-softmax"]').forEach(start);
})();
