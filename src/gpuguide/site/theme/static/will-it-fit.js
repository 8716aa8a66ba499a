// The calculator of a model's memory: reads the form, asks memory.js, and draws the answer.
"use strict";
(() => {
  const place = document.getElementById("gg-will-it-fit");
  if (!place) return;
  const { element, binary, percent, Form, formField, fromAddress, toAddress, table, refuse, code, python,
    data } =
    gpuguide.calculator;
  const known = data("gg-will-it-fit-data");
  const memory = gpuguide.costs.memory(known.memory);
  const first = { ...known.first, capacity: "" };
  const CUSTOM = "custom";
  const SHAPE = known.memory.shape.map((field) => field.name);
  const SETUP = known.memory.setup.map((field) => field.name);
  const AT_FIRST = ["purpose", "precision", "batch", "seq_len"];

  const ORIGINS = { driver: "as its driver reports", printed: "as printed", given: "as you say" };
  const gpus = known.gpus.map(({ id, name, memory: size, origin }) => ({ value: id,
    label: `${name}, ${binary(size)}${origin === "printed" ? " printed" : ""}` }));
  const models = known.models.map(({ id, name, family }) => ({ value: id, label: name, group: family }));
  const setup = known.memory.setup.map(formField);
  const groups = [
    { title: "What", fields: [
      { name: "model", label: "Model", kind: "choice",
        options: [...models, { value: CUSTOM, label: "your own shape", group: "Other" }] },
      { name: "gpu", label: "GPU", kind: "choice", options: gpus },
      { name: "capacity", label: "Custom memory, GiB", kind: "number" },
      ...AT_FIRST.map((name) => setup.find((field) => field.name === name)),
    ] },
    { title: "How", fields: setup.filter((field) => !AT_FIRST.includes(field.name)) },
    { title: "Shape of the model", folded: true, fields: known.memory.shape.map(formField) },
  ];

  const form = new Form(place, groups, changed);
  const answer = element("div", { class: "gg-answer" });
  const verdict = element("p", { class: "gg-verdict-line", role: "status", tabindex: "-1" });
  const said = element("div", {});
  const drawing = gpuguide.stepDrawing(known.step);
  const rest = element("div", {});
  answer.append(drawing.figure, rest);
  place.append(verdict, said, answer);
  let last = null;  // the moments that are drawn
  let before = null;  // those of the setting before
  let edited = null;  // the number field that is being typed in

  form.form.addEventListener("change", () => { edited = null; });

  const preset = (id) => known.models.find((model) => model.id === id);
  const pick = (state, names) => Object.fromEntries(names.map((name) => [name, state[name]]));

  function precisions(state) {
    form.options("precision", setup.find((field) => field.name === "precision").options(state), state.precision);
  }

  function changed(name) {
    // A number grows digit by digit: it is compared with the setting before the first of them.
    if (edited !== name || form.inputs.get(name).field.kind !== "number") before = last;
    edited = name;
    if (name === "model" && preset(form.read().model)) form.write(preset(form.read().model).shape);
    if (name === "purpose") precisions(form.read());
    if (SHAPE.includes(name)) form.write({ model: CUSTOM });
    show([]);
  }

  // Fields that do not apply are not shown, and count as left alone.
  function applying(state) {
    const { of } = memory.known(pick(state, SHAPE), pick(state, SETUP));
    const applies = Object.fromEntries(known.memory.setup.map(({ name, when }) => [name, of(when)]));
    form.show(applies);
    return Object.fromEntries(SETUP.map((name) => [name, applies[name] ? state[name] : known.setup_defaults[name]]));
  }

  function capacityOf(state) {
    const gpu = known.gpus.find((each) => each.id === state.gpu);
    if (state.capacity === "empty") return { ...gpu, fault: "" };
    const fits = typeof state.capacity === "number" && state.capacity >= 1 && state.capacity <= 1e6;
    return { name: "a GPU of your own", memory: state.capacity * 2 ** 30, origin: "given",
      fault: fits ? "" : `capacity is ${state.capacity}; it must be a number from 1 to 1000000, or empty.` };
  }

  function show(remarks) {
    const state = form.read();
    const shape = pick(state, SHAPE);
    const setup = applying(state);
    const gpu = capacityOf(state);
    const shapeFaults = memory.shapeFaults(shape);
    const faults = Object.keys(shapeFaults).length ? shapeFaults : memory.setupFaults(shape, setup);
    const wrong = form.judge(gpu.fault ? { capacity: gpu.fault, ...faults } : faults);
    remember(state);
    if (refuse({ verdict, said, answer }, remarks, wrong)) return;
    const found = memory.predict(shape, setup);
    judgement(found.total, gpu, setup);
    drawing.show(found.moments, gpu, before);
    last = found.moments;
    rest.replaceChildren(...alone(shape, setup, gpu), parts(found), moments(found), ...help(shape, setup, gpu, found),
      calls(state, shape, setup));
  }

  function remember(state) {
    const own = state.model === CUSTOM;
    const kept = Object.entries(state).filter(([name]) => own || !SHAPE.includes(name));
    if (state.capacity === "empty") kept.push(["capacity", ""]);
    toAddress(Object.fromEntries(kept), own ? { ...known.setup, gpu: first.gpu } : { ...known.setup, ...first });
  }

  function judgement(total, gpu, setup) {
    const count = setup.tensor_parallel * setup.data_parallel;
    const share = total / gpu.memory;
    const where = count > 1 ? `on each of ${count} × ${gpu.name}` : `on ${gpu.name}`;
    const size = `${binary(total)} of ${binary(gpu.memory)}, ${ORIGINS[gpu.origin]}, ${where}`;
    const [word, kind] = share <= known.safe_share ? ["It fits", "gg-good"]
      : share <= 1 ? ["It is tight", "gg-between"] : ["It does not fit", "gg-bad"];
    verdict.className = `gg-verdict-line ${kind}`;
    verdict.replaceChildren(element("strong", {}, `${word}: `), `${size}, ${percent(share)}.`);
  }

  // What no smaller batch helps against.
  function alone(shape, setup, gpu) {
    const { named } = memory.known(shape, setup);
    const trains = setup.purpose === "train";
    const size = trains ? named("train_weights") + named("train_states") + named("all_gradients")
      : named("weight_bytes");
    if (size <= gpu.memory) return [];
    const what = trains ? "Weights, gradients and optimizer states" : "The weights";
    return [element("p", {}, `${what} alone take ${binary(size)}, however short the input.`)];
  }

  function parts(found) {
    const used = Object.entries(found.highest.parts).filter(([, size]) => size > 0);
    const rows = used.map(([part, size]) => [
      [element("span", { class: `gg-swatch gg-part-${part}` }), known.part_names[part]],
      binary(size), percent(size / found.total)]);
    return table(`At the highest moment (${found.highest.name})`, ["what for", "memory", "share"],
      [...rows, ["in all", binary(found.total), "100%"]]);
  }

  function moments(found) {
    const rows = found.moments.map((moment) => [moment.name, binary(moment.total),
      moment === found.highest ? "highest" : ""]);
    return element("details", { class: "gg-fold" }, element("summary", {}, "All moments of the step"),
      table("Memory by moment of the step", ["moment", "memory", ""], rows));
  }

  function help(shape, setup, gpu, found) {
    const available = known.safe_share * gpu.memory;
    const most = memory.largestBatch(shape, setup, available);
    const batches = most ? `At most ${most} of these sequences fit at a time.` : "Not even one sequence fits like this.";
    const fits = found.total <= available;
    const lead = element("p", {}, element("strong", {}, fits ? "Room for more. " : "What to change. "), batches);
    const changes = memory.remedies(shape, setup).map((remedy) => {
      const enough = remedy.total <= available;
      const button = element("button", { type: "button", class: "gg-apply" }, remedy.change);
      button.addEventListener("click", () => {
        form.write(remedy.fields);
        [before, edited] = [last, null];
        show([]);
        verdict.focus({ preventScroll: true });  // the button is gone, and with it would be the place on the page
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
  precisions(state);
  form.write(state);
  if (preset(state.model)) form.write(preset(state.model).shape);
  else form.write({ ...preset(first.model).shape, ...pick(state, SHAPE.filter((name) => name in state)) });
  show(remarks);
})();
