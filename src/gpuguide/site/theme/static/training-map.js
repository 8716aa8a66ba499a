// A map of the loss over batch size and learning rate: choose a cell, and see the losses of its seeds and its curve.
"use strict";
(() => {
  function start(place) {
    const { element, svg } = gpuguide.calculator;
    const known = JSON.parse(place.querySelector("script").textContent);
    const figure = place.closest("figure");
    const meanOf = ({ loss }) => loss ?? Infinity; // null where a seed diverged
    const best = known.settings.reduce((one, other) => (meanOf(other) < meanOf(one) ? other : one));
    const lowest = meanOf(best);
    const find = (batch, rate) => known.settings.find((each) => each.batch === batch && each.rate === rate);
    const nameOf = (rate) => known.rates.find(({ value }) => value === rate).name;
    let chosen = best;

    const cells = new Map();
    const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "rate"),
      ...known.batches.map((batch) => element("th", { scope: "col" }, batch.toLocaleString("en")))));
    const rows = known.rates.map(({ value, name }) => element("tr", {}, element("th", { scope: "row" }, name),
      ...known.batches.map((batch) => {
        const setting = find(batch, value);
        if (!setting) return element("td", {});
        const mean = meanOf(setting);
        const button = element("button", { type: "button",
          "aria-label": `batch ${batch}, rate ${name}, ${Number.isFinite(mean) ? `loss ${mean.toFixed(2)}` : "diverged"}` },
        Number.isFinite(mean) ? mean.toFixed(2) : "div.");
        const share = Math.max(0, 1 - (mean - lowest) / known.span);
        button.classList.toggle("gg-best", setting.good);
        button.style.setProperty("--gg-near", `${(45 * share).toFixed(0)}%`);
        button.addEventListener("click", () => choose(setting));
        cells.set(setting, button);
        return element("td", {}, button);
      })));
    const table = element("table", { class: "gg-loss-map", role: "grid" },
      element("caption", {}, "Held-out loss by learning rate (rows) and batch (columns, sequences of 256 tokens)"),
      head, element("tbody", {}, ...rows));
    // One stop of the tab key; arrows go from cell to cell.
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    table.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const row = known.rates.findIndex(({ value }) => value === chosen.rate) + step[0];
      const next = find(known.batches[known.batches.indexOf(chosen.batch) + step[1]], known.rates[row]?.value);
      if (!next) return;
      choose(next);
      cells.get(next).focus();
    });
    const answer = element("p", { class: "gg-try-answer", role: "status" });
    const holder = element("div", {});
    place.append(table, answer, holder);
    figure.classList.add("gg-tried");

    const finite = known.settings.flatMap(({ curve }) => curve);
    const [top, bottom] = [Math.max(...finite.filter((loss) => loss < 9)), Math.min(...finite)];

    function choose(setting) {
      chosen = setting;
      draw();
    }
    function draw() {
      for (const [setting, button] of cells) {
        button.setAttribute("aria-pressed", String(setting === chosen));
        button.tabIndex = setting === chosen ? 0 : -1;
      }
      const [width, height, left] = [place.clientWidth < 520 ? 340 : 640, 200, 40];
      const x = (at, count) => left + ((at + 0.5) / count) * (width - left - 10);
      const y = (loss) => 12 + ((top - Math.min(loss, top)) / (top - bottom)) * (height - 50);
      const line = ({ curve }, kind) => svg("polyline", { class: kind,
        points: curve.map((loss, at) => `${x(at, curve.length).toFixed(1)},${y(loss).toFixed(1)}`).join(" ") });
      const text = (across, down, words, anchor) => {
        const made = svg("text", { x: across, y: down.toFixed(1), "text-anchor": anchor });
        made.textContent = words;
        return made;
      };
      const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "gg-roofline", role: "img",
        "aria-label": `Training loss over the run, for batch ${chosen.batch} and rate ${nameOf(chosen.rate)}` });
      for (let loss = Math.ceil(bottom); loss <= top; loss += 1) {
        picture.append(svg("polyline", { class: "gg-grid", points: `${left},${y(loss)} ${width - 10},${y(loss)}` }),
          text(left - 8, y(loss) + 4, String(loss), "end"));
      }
      picture.append(line(best, "gg-roof gg-roof-other"), line(chosen, "gg-roof"),
        text((width + left) / 2, height - 6, "training loss in nats; grey: the best setting", "middle"));
      holder.replaceChildren(picture);
      const seeds = chosen.losses.map((loss) => loss.toFixed(3)).join(", ");
      const count = chosen.losses.length;
      const spread = count > 1 ? `, ${(Math.max(...chosen.losses) - Math.min(...chosen.losses)).toFixed(3)} apart` : "";
      answer.textContent = `Batch ${chosen.batch.toLocaleString("en")}, rate ${nameOf(chosen.rate)}: `
        + (count ? `held-out loss ${seeds} with ${count} ${count === 1 ? "seed" : "seeds"}${spread}` : "no seed ended")
        + (chosen.diverged ? `; ${chosen.diverged} diverged.` : ".");
    }
    window.addEventListener("resize", draw);
    draw();
  }
  document.querySelectorAll('.gg-try[data-kind="training-map"]').forEach(start);
})();
