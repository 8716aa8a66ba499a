// What moving something over a link takes, from the formulas of gpuguide.costs.transfers. The tests compare the two.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.transfers = (model) => {
  const { values, faults: wrong } = gpuguide.formulas;

  // Of a model `context` is what it knows, and of a cache what is in it.
  const all = (input, shape) => (shape ? { ...input, ...shape, tensor_parallel: 1, cached: input.context } : input);

  function faults(name, input, shape) {
    const { fields, rules, formulas } = model.things[name];
    const found = wrong(fields, [], input, formulas);
    return Object.keys(found).length ? found : wrong([], rules, all(input, shape), formulas);
  }
  function transfer(name, input, shape) {
    const { named } = values(model.things[name].formulas, all(input, shape));
    return { moved: named("moved"), messages: named("messages") };
  }
  const wayFaults = (way) => wrong(model.way, [], way, { trees: {}, constants: {} });
  // Seconds; `bandwidth` in B/s, the share in percent and the latency in ns, as a form has them.
  function time({ moved, messages }, bandwidth, { share, latency }) {
    return values(model.time, { moved, messages, bandwidth, share: share / 100, latency: latency * 1e-9 }).named("time");
  }

  return { faults, transfer, wayFaults, time };
};
