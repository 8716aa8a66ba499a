// The calculator of a model's memory: reads the form, asks memory.js, and draws the answer.
"use strict";
(() => {
  const place = document.getElementById("gg-will-it-fit");
  if (!place) return;
  const { element, binary, percent, Form, options, fromAddress, toAddress, table, notices, code, python, data } =
    gpuguide.calculator;
  const known = data("gg-will-it-fit-data");
  const memory = gpuguide.costs.memory(known.memory);
  const first = known.first;
  const CUSTOM = "custom";
  const SHAPE = Object.keys(known.shape_labels);
  const FLAGS = ["gated", "tied", "learned_positions", "layer_norm", "qk_norm"];
  const SETUP = Object.keys(known.setup);

  const numbers = (names, labels) => names.map((name) => ({ name, label: labels[name], kind: "number", code: true }));
  const gpus = known.gpus.map(({ id, name, memory: size }) => ({ value: id, label: `${name}, ${size / 1e9} GB` }));
  const models = known.models.map(({ id, name, family }) => ({ value: id, label: name, group: family }));
  const shapeNumbers = SHAPE.filter((name) => !FLAGS.includes(name) && !["bias", "norms"].includes(name));
  const groups = [
    { title: "What", fields: [
      { name: "model", label: "Model", kind: "choice",
        options: [...models, { value: CUSTOM, label: "your own shape", group: "Other" }] },
      { name: "gpu", label: "GPU", kind: "choice", options: gpus },
      { name: "purpose", label: "Purpose", kind: "choice",
        options: options(known.memory.purposes, { train: "train all weights", generate: "generate text",
          evaluate: "one forward pass, all logits" }) },
      { name: "precision", label: "Precision", kind: "choice", later: true, options: [] },
      ...numbers(["batch", "seq_len"], { batch: "Sequences at a time", seq_len: "Tokens a sequence" }),
    ] },
    { title: "How", fields: [
      { name: "optimizer", label: "Optimizer", kind: "choice", options: options(known.memory.optimizers,
        { adamw: "AdamW", "adamw-fused": "AdamW, fused", "sgd-momentum": "SGD with momentum", sgd: "SGD" }) },
      { name: "cache", label: "Key and value cache", kind: "choice", options: options(known.memory.caches) },
      { name: "tensor_parallel", label: "GPUs that share a matrix", kind: "number", code: true },
      { name: "data_parallel", label: "Groups with other data", kind: "number", code: true },
      { name: "sharding", label: "Divided over the groups", kind: "choice", number: true, options: options([0, 1, 2, 3],
        { 0: "nothing", 1: "optimizer states", 2: "… and gradients", 3: "… and weights" }) },
      { name: "fused_attention", label: "fused attention", kind: "flag" },
      { name: "checkpointing", label: "checkpoint the layers", kind: "flag" },
    ] },
    { title: "Shape of the model", folded: true, fields: [
      ...numbers(shapeNumbers, known.shape_labels),
      { name: "bias", label: known.shape_labels.bias, kind: "choice", options: options(known.memory.biases) },
      { name: "norms", label: known.shape_labels.norms, kind: "choice", number: true, options: options([2, 4]) },
      ...FLAGS.map((name) => ({ name, label: known.shape_labels[name], kind: "flag" })),
    ] },
  ];

  const form = new Form(place, groups, changed);
  const answer = element("div", { class: "gg-answer" });
  const verdict = element("p", { class: "gg-verdict-line", role: "status" });
  place.append(verdict, answer);

  const preset = (id) => known.models.find((model) => model.id === id);
  const pick = (state, names) => Object.fromEntries(names.map((name) => [name, state[name]]));
  const PRECISIONS = { mixed: "mixed: FP32 weights, BF16 products", bf16: "16 bits", fp32: "32 bits",
    int8: "8-bit weights", int4: "4-bit weights" };

  function precisions(purpose, value) {
    form.options("precision", options(memory.precisionsFor(purpose), PRECISIONS), value);
  }

  function changed(name) {
    if (name === "model" && preset(form.read().model)) form.write(preset(form.read().model).shape);
    if (name === "purpose") precisions(form.read().purpose);
    if (SHAPE.includes(name)) form.write({ model: CUSTOM });
    show([]);
  }

  function show(remarks) {
    const state = form.read();
    const [shape, setup] = [pick(state, SHAPE), pick(state, SETUP)];
    const trains = setup.purpose === "train";
    form.show({ optimizer: trains, checkpointing: trains, data_parallel: trains, sharding: trains,
      cache: setup.purpose === "generate" });
    const shapeFaults = memory.shapeFaults(shape);
    const faults = Object.keys(shapeFaults).length ? shapeFaults : memory.setupFaults(shape, setup);
    const fine = form.judge(faults);
    remember(state);
    if (!fine) {
      verdict.textContent = Object.values(faults)[0];
      verdict.className = "gg-verdict-line gg-bad";
      answer.replaceChildren(...notices(remarks));
      return;
    }
    const gpu = known.gpus.find((each) => each.id === state.gpu);
    const found = memory.predict(shape, setup);
    judgement(found.total, gpu, setup);
    answer.replaceChildren(...notices(remarks), bar(found, gpu), parts(found), moments(found),
      ...help(shape, setup, gpu, found), calls(state, shape, setup));
  }

  function remember(state) {
    const own = state.model === CUSTOM;
    const kept = Object.entries(state).filter(([name]) => own || !SHAPE.includes(name));
    toAddress(Object.fromEntries(kept), own ? { ...known.setup, gpu: first.gpu } : { ...known.setup, ...first });
  }

  function judgement(total, gpu, setup) {
    const count = setup.tensor_parallel * (setup.purpose === "train" ? setup.data_parallel : 1);
    const share = total / gpu.memory;
    const where = count > 1 ? `on each of ${count} × ${gpu.name}` : `on ${gpu.name}`;
    const size = `${binary(total)} of ${binary(gpu.memory)}, as printed, ${where}`;
    const [word, kind] = share <= known.memory.safe_share ? ["It fits", "good"]
      : share <= 1 ? ["It is tight", "between"] : ["It does not fit", "bad"];
    verdict.className = `gg-verdict-line gg-${kind}`;
    verdict.replaceChildren(element("strong", {}, `${word}: `), `${size}, ${percent(share)}.`);
  }

  function bar(found, gpu) {
    const scale = 100 / Math.max(found.total, gpu.memory);
    const used = Object.entries(found.highest.parts).filter(([, size]) => size > 0);
    const pieces = used.map(([part, size]) => element("span", { class: `gg-piece gg-part-${part}`,
      style: `width:${size * scale}%`, title: `${known.part_names[part]}: ${binary(size)}` }));
    const limit = element("span", { class: "gg-capacity", style: `left:${gpu.memory * scale}%` });
    const words = used.map(([part, size]) => `${known.part_names[part]} ${binary(size)}`).join(", ");
    const label = `Bar of ${binary(found.total)} against the ${binary(gpu.memory)} of ${gpu.name}: ${words}.`;
    return element("div", { class: "gg-bar", role: "img", "aria-label": label }, ...pieces, limit);
  }

  function parts(found) {
    const used = Object.entries(found.highest.parts).filter(([, size]) => size > 0);
    const rows = used.map(([part, size]) => [
      [element("span", { class: `gg-swatch gg-part-${part}` }), known.part_names[part]],
      binary(size), percent(size / found.total)]);
    return table(`At the highest moment (${found.highest.name})`, ["what for", "memory", "share"],
      [...rows, ["in all", binary(found.total), "100 %"]]);
  }

  function moments(found) {
    const rows = found.moments.map((moment) => [moment.name, binary(moment.total),
      moment === found.highest ? "highest" : ""]);
    return element("details", { class: "gg-fold" }, element("summary", {}, "All moments of the step"),
      table("Memory by moment of the step", ["moment", "memory", ""], rows));
  }

  function help(shape, setup, gpu, found) {
    const available = known.memory.safe_share * gpu.memory;
    const most = memory.largestBatch(shape, setup, available);
    const batches = most ? `At most ${most} of these sequences fit at a time.` : "Not even one sequence fits like this.";
    const fits = found.total <= available;
    const lead = element("p", {}, element("strong", {}, fits ? "Room for more. " : "What to change. "), batches);
    const changes = memory.remedies(shape, setup).map((remedy) => {
      const enough = remedy.total <= available;
      const button = element("button", { type: "button", class: "gg-apply" }, remedy.change);
      button.addEventListener("click", () => {
        form.write(remedy.fields);
        show([]);
        verdict.scrollIntoView({ block: "nearest" });
      });
      return [button, binary(remedy.total), enough ? "fits" : "does not fit"];
    });
    return [lead, ...(changes.length ? [table("One change, and what it leads to", ["change", "memory", "then it"],
      changes)] : [])];
  }

  function calls(state, shape, setup) {
    const given = SETUP.filter((name) => setup[name] !== known.setup_defaults[name]);
    const words = given.map((name) => `${name}=${python(setup[name])}`).join(", ");
    const own = SHAPE.filter((name) => shape[name] !== known.shape_defaults[name])
      .map((name) => `${name}=${python(shape[name])}`).join(", ");
    const model = state.model === CUSTOM ? `memory.Shape(${own})` : `presets.get(${python(state.model)}).shape`;
    const text = `from gpuguide.costs import memory, presets\n\nsetup = memory.Setup(${words})\n`
      + `memory.predict(${model}, setup).total`;
    const box = element("details", { class: "gg-fold" }, element("summary", {}, "The same in Python"), code(text));
    return box;
  }

  const { state, notices: remarks } = fromAddress(form, { ...known.setup, ...first });
  precisions(state.purpose, state.precision);
  form.write(state);
  if (preset(state.model)) form.write(preset(state.model).shape);
  else form.write({ ...preset(first.model).shape, ...pick(state, SHAPE.filter((name) => name in state)) });
  show(remarks);
})();
