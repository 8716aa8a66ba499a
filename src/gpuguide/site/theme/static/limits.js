// The shortest time of an operation on a GPU, from the formulas of gpuguide.costs.limits. The tests compare the two.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.limits = (model) => {
  const { values, faults: wrong } = gpuguide.formulas;

  // Of a model `context` is what it knows, and of a step what is in the cache.
  const all = (input, shape) => (shape ? { ...input, ...shape, tensor_parallel: 1, cached: input.context } : input);

  function faults(name, input, shape) {
    const { fields, rules, formulas } = model.operations[name];
    const found = wrong(fields, [], input, formulas);
    return Object.keys(found).length ? found : wrong([], rules, all(input, shape), formulas);
  }
  function cost(name, input, shape) {
    const { named } = values(model.operations[name].formulas, all(input, shape));
    return { flops: named("flops"), moved: named("moved"), through: named("through"), format: named("rate"),
      held: named("held") };
  }
  // Why a GPU cannot do it, or null.
  function lacking(operation, machine) {
    if (!(operation.through in machine.bandwidth)) {
      const way = ["copy", "read"].includes(operation.through) ? "memory" : operation.through;
      return `The bandwidth of the ${way} of ${machine.name} is not known.`;
    }
    if (!(operation.format in machine.arithmetic)) {
      const has = Object.keys(machine.arithmetic).join(", ");
      return `${machine.name} has no rate for ${operation.format}; choose one of ${has}.`;
    }
    if (operation.held > machine.capacity) {
      const [needed, there] = [operation.held, machine.capacity].map((size) => (size / 2 ** 30).toFixed(1));
      return `It does not fit: the operands take ${needed} GiB, and ${machine.name} has ${there} GiB.`;
    }
    return null;
  }
  function limit(operation, machine) {
    const rate = machine.arithmetic[operation.format];
    const bandwidth = machine.bandwidth[operation.through];
    const { named } = values(model.limit, { flops: operation.flops, moved: operation.moved, through: operation.through,
      peak: rate.value, bandwidth: bandwidth.value, launch: machine.launch ? machine.launch.value : 0 });
    const found = Object.fromEntries(Object.keys(model.limit.trees).map((name) => [name, named(name)]));
    return { operation, rate, bandwidth, ...found };
  }

  return { faults, cost, lacking, limit };
};
