// The memory of a language model, from the formulas of gpuguide.costs.memory. The tests compare the two.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.memory = (model) => {
  const { values, faults } = gpuguide.formulas;

  const known = (shape, setup) => values(model.formulas, { ...shape, ...setup });
  const shapeFaults = (shape) => faults(model.shape, model.shape_rules, shape, model.formulas);
  const setupFaults = (shape, setup) =>
    faults(model.setup, model.setup_rules, { ...shape, ...setup }, model.formulas);
  const parameters = (shape) => Math.round(known(shape, { tensor_parallel: 1 }).named("total"));

  function predict(shape, setup) {
    const { of } = known(shape, setup);
    const moments = model.moments[setup.purpose === "train" ? "train" : "use"].map(([name, trees]) => {
      const parts = Object.fromEntries(model.parts.map((part) => [part, part in trees ? of(trees[part]) : 0]));
      return { name, parts, total: Object.values(parts).reduce((sum, size) => sum + size, 0) };
    });
    const highest = moments.reduce((best, moment) => (moment.total > best.total ? moment : best));
    return { moments, highest, total: highest.total };
  }

  // Single changes that lower the memory, each with what it leads to.
  function remedies(shape, setup) {
    const now = predict(shape, setup).total;
    const { of, filled } = known(shape, setup);
    const found = [];
    for (const { when, says, fields: trees } of model.changes) {
      if (!of(when)) continue;
      const fields = Object.fromEntries(Object.entries(trees).map(([name, tree]) => [name, of(tree)]));
      const changed = { ...setup, ...fields };
      if (Object.keys(setupFaults(shape, changed)).length) continue;
      const total = predict(shape, changed).total;
      if (total < 0.995 * now) found.push({ change: filled(says), fields, total });
    }
    return found;
  }

  function largestBatch(shape, setup, available) {
    const most = model.setup.find((field) => field.name === "batch").whole[1];
    const fits = (batch) => predict(shape, { ...setup, batch }).total <= available;
    if (!fits(1)) return 0;
    let [low, high] = [1, 2];
    while (high <= most && fits(high)) [low, high] = [high, 2 * high];
    high = Math.min(high, most + 1);
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      [low, high] = fits(middle) ? [middle, high] : [low, middle];
    }
    return low;
  }

  return { known, shapeFaults, setupFaults, parameters, predict, remedies, largestBatch };
};
