// The memory of a language model: gpuguide.costs.memory, line by line. The tests compare the two on random input.
"use strict";
window.gpuguide ??= {};
gpuguide.costs ??= {};
gpuguide.costs.memory = (known) => {
  const sizes = known.element_size;

  function wholeFault(faults, name, value, largest) {
    if (!Number.isInteger(value) || value < 1 || value > largest) {
      faults[name] = `${name} is ${value}; it must be a whole number from 1 to ${largest}.`;
    }
  }
  function choiceFault(faults, name, value, choices) {
    if (!choices.includes(value)) faults[name] = `${name} is ${value}; choose one of ${choices.join(", ")}.`;
  }

  function shapeFaults(shape) {
    const faults = {};
    for (const name of ["layers", "heads", "kv_heads"]) wholeFault(faults, name, shape[name], known.largest.count);
    for (const name of ["hidden", "head_dim", "intermediate", "vocab", "context"]) {
      wholeFault(faults, name, shape[name], known.largest.size);
    }
    choiceFault(faults, "bias", shape.bias, known.biases);
    if (![2, 4].includes(shape.norms)) faults.norms = `norms is ${shape.norms}; a layer has 2 or 4.`;
    if (!Object.keys(faults).length && shape.heads % shape.kv_heads) {
      faults.kv_heads = `kv_heads is ${shape.kv_heads}; it must divide the ${shape.heads} heads.`;
    }
    return faults;
  }

  function setupFaults(shape, setup) {
    const faults = {};
    choiceFault(faults, "purpose", setup.purpose, known.purposes);
    if (!Object.keys(faults).length) {
      choiceFault(faults, "precision", setup.precision, precisionsFor(setup.purpose));
    }
    choiceFault(faults, "optimizer", setup.optimizer, known.optimizers);
    choiceFault(faults, "cache", setup.cache, known.caches);
    for (const name of ["batch", "tensor_parallel", "data_parallel"]) {
      wholeFault(faults, name, setup[name], known.largest.count);
    }
    wholeFault(faults, "seq_len", setup.seq_len, known.largest.size);
    if (!("seq_len" in faults) && setup.seq_len > shape.context) {
      faults.seq_len = `seq_len is ${setup.seq_len}; the model knows ${shape.context} positions.`;
    }
    if (!("tensor_parallel" in faults)) {
      const name = ["heads", "intermediate"].find((each) => shape[each] % setup.tensor_parallel);
      if (name) {
        const parts = setup.tensor_parallel;
        faults.tensor_parallel = `tensor_parallel is ${parts}; it must divide the ${shape[name]} of ${name}.`;
      }
    }
    if (![0, 1, 2, 3].includes(setup.sharding)) {
      faults.sharding = `sharding is ${setup.sharding}; choose 0, 1, 2 or 3.`;
    }
    return faults;
  }

  const precisionsFor = (purpose) => (purpose === "train" ? known.training_precisions : known.weight_formats);

  // What one of so many tensor-parallel GPUs holds.
  function local(shape, parts) {
    const keys = Math.max(1, shape.kv_heads / parts) * shape.head_dim;
    const queries = (shape.heads * shape.head_dim) / parts;
    const inner = shape.intermediate / parts;
    const vocab = shape.vocab / parts;
    const feedForward = (shape.gated ? 3 : 2) * shape.hidden * inner;
    const matrices = shape.hidden * (2 * queries + 2 * keys) + feedForward;
    const norm = shape.hidden * (shape.layer_norm ? 2 : 1);
    let biases = 0;
    if (shape.bias !== "none") biases += queries + 2 * keys;
    if (shape.bias === "all") biases += (shape.gated ? 2 : 1) * inner + 2 * shape.hidden;
    const layer = matrices + biases + shape.norms * norm + (shape.qk_norm ? 2 * shape.head_dim : 0);
    const head = vocab * shape.hidden;
    const positions = shape.learned_positions ? shape.context * shape.hidden : 0;
    const ends = head * (shape.tied ? 1 : 2) + positions + norm;
    return { keys, queries, inner, vocab, feedForward, matrices, norm, layer, head, ends,
      total: shape.layers * layer + ends };
  }
  const parameters = (shape) => Math.round(local(shape, 1).total);

  const computeSize = (setup) => (setup.precision === "fp32" ? 4 : 2);
  const streamSize = (setup) => (["bf16", "int8", "int4"].includes(setup.precision) ? 2 : 4);
  const tokensOf = (setup) => setup.batch * setup.seq_len;
  const scoresOf = (shape, setup) => ((4 * setup.batch * shape.heads) / setup.tensor_parallel) * setup.seq_len ** 2;

  function activationsOfLayer(shape, setup) {
    const here = local(shape, setup.tensor_parallel);
    const [tokens, compute, stream] = [tokensOf(setup), computeSize(setup), streamSize(setup)];
    const statistics = shape.layer_norm ? 8 : 4;
    let norms = tokens * (shape.norms * (stream * shape.hidden + statistics) + 2 * compute * shape.hidden);
    if (shape.qk_norm) {
      norms += tokens * (stream * (here.queries + here.keys) + (4 * (here.queries + here.keys)) / shape.head_dim);
    }
    return norms + attention(shape, setup) + feedForward(shape, setup);
  }
  function attention(shape, setup) {
    const here = local(shape, setup.tensor_parallel);
    const [tokens, compute] = [tokensOf(setup), computeSize(setup)];
    const output = compute * tokens * here.queries;
    if (setup.fused_attention) {
      const heads = here.queries / shape.head_dim;
      return output + compute * tokens * (here.queries + 2 * here.keys) + 4 * tokens * heads;
    }
    let copies = 4 * tokens * 3 * here.queries;
    if (compute === 4) copies += 4 * tokens * 2 * here.keys;
    return output + copies + scoresOf(shape, setup);
  }
  function feedForward(shape, setup) {
    return computeSize(setup) * tokensOf(setup) * (shape.gated ? 4 : 2) * local(shape, setup.tensor_parallel).inner;
  }
  function backwardOfLayer(shape, setup, gradient) {
    const here = local(shape, setup.tensor_parallel);
    const [tokens, compute, stream] = [tokensOf(setup), computeSize(setup), streamSize(setup)];
    const through = tokens * shape.hidden * (stream + (setup.precision === "mixed" ? compute : 0));
    const wide = tokens * here.inner * compute * (shape.gated ? 2 : 1) + compute * shape.hidden * here.inner;
    if (setup.fused_attention) return through + wide;
    const freed = feedForward(shape, setup) + tokens * shape.hidden * (stream + compute);
    const narrow = 2 * scoresOf(shape, setup) + 4 * tokens * here.queries + gradient * here.feedForward - freed;
    return through + Math.max(wide, narrow);
  }

  function training(shape, setup) {
    const here = local(shape, setup.tensor_parallel);
    const tokens = tokensOf(setup);
    const mixed = setup.precision === "mixed";
    const [compute, stream] = [computeSize(setup), streamSize(setup)];
    const number = setup.precision === "bf16" ? 2 : 4;
    const shards = [0, 1, 2, 3].map((stage) => (setup.sharding >= stage ? setup.data_parallel : 1));
    const gathered = setup.sharding === 3 && setup.data_parallel > 1;
    const fixed = {
      weights: (number * here.total) / shards[3],
      optimizer: (number * known.state_copies[setup.optimizer] * here.total) / shards[1],
      workspace: 2 * known.workspace,
    };
    const copies = (layers, ends) => {
      if (gathered) return compute * (Math.min(layers, 2) * here.layer + here.ends);
      return mixed ? compute * (layers * here.matrices + ends * here.head) : 0;
    };
    const gradients = (layers, ends) => {
      if (shards[2] === 1) return number * (layers * here.layer + ends);
      return number * ((layers * here.layer + ends) / shards[2] + Math.min(1, layers) * here.layer);
    };
    const layer = activationsOfLayer(shape, setup);
    const streams = shape.layers * stream * tokens * shape.hidden;
    const kept = setup.checkpointing ? streams : shape.layers * layer;
    const norm = tokens * ((stream + compute) * shape.hidden + (shape.layer_norm ? 8 : 4));
    const inputs = 16 * tokens;
    const scores = tokens * here.vocab;
    const held = setup.checkpointing ? 0 : shape.layers;
    const again = setup.checkpointing ? layer - stream * tokens * shape.hidden : 0;
    const working = backwardOfLayer(shape, setup, number);
    return [
      ["loss, forward", { ...fixed,
        copies: copies(shape.layers, 1),
        activations: inputs + kept + norm,
        logits: scores * (2 * compute + (mixed ? number : 0)) }],
      ["loss, backward", { ...fixed,
        copies: copies(held, 1),
        activations: inputs + kept + norm,
        logits: scores * (2 * number + compute) }],
      ["head, backward", { ...fixed,
        copies: copies(held, 1),
        activations: inputs + kept + norm,
        temporary: compute * tokens * shape.hidden
          + Math.max(compute * (scores + here.head), mixed ? (compute + number) * here.head : 0) }],
      ["last layer, backward", { ...fixed,
        copies: copies(Math.max(held, 1), 0),
        activations: inputs + kept + again,
        gradients: gradients(0, here.head),
        temporary: working }],
      ["first layer, backward", { ...fixed,
        copies: copies(1, 0),
        activations: inputs + layer,
        gradients: gradients(shape.layers - 1, here.head),
        temporary: working }],
      ["embedding, backward", { ...fixed,
        copies: copies(0, 0),
        activations: inputs,
        gradients: gradients(shape.layers, here.ends),
        temporary: stream * tokens * shape.hidden + (shape.tied ? number * here.head * (mixed ? 1 : 2) : 0) }],
      ["optimizer", { ...fixed,
        activations: inputs,
        gradients: (number * here.total) / shards[2],
        temporary: setup.optimizer === "adamw" ? (number * here.total) / shards[1] : 0 }],
    ];
  }

  function cacheBytes(shape, setup) {
    return 2 * shape.layers * local(shape, setup.tensor_parallel).keys * tokensOf(setup) * sizes[setup.cache];
  }
  function weightBytes(shape, setup) {
    const here = local(shape, setup.tensor_parallel);
    const matrices = shape.layers * here.matrices;
    const rest = sizes[setup.precision === "fp32" ? "fp32" : "bf16"];
    return matrices * sizes[setup.precision] + (here.total - matrices) * rest;
  }
  function inference(shape, setup) {
    const here = local(shape, setup.tensor_parallel);
    const tokens = tokensOf(setup);
    const generates = setup.purpose === "generate";
    const compute = computeSize(setup);
    const fixed = {
      weights: weightBytes(shape, setup),
      cache: generates ? cacheBytes(shape, setup) : 0,
      workspace: known.workspace,
    };
    const inputs = 16 * tokens;
    let wide = tokens * (3 * shape.hidden + (shape.gated ? 3 : 2) * here.inner) * compute;
    if (!setup.fused_attention) {
      const plain = 2 * scoresOf(shape, setup)
        + tokens * (2 * shape.hidden * compute + 3 * here.queries * (compute + 4));
      wide = Math.max(wide, plain);
    }
    const scored = generates ? setup.batch : tokens;
    return [
      ["widest layer", { ...fixed, activations: inputs, temporary: wide }],
      ["logits", { ...fixed,
        activations: inputs + 2 * compute * tokens * shape.hidden,
        logits: compute * scored * here.vocab }],
    ];
  }

  function predict(shape, setup) {
    const moments = (setup.purpose === "train" ? training : inference)(shape, setup).map(([name, found]) => {
      const parts = Object.fromEntries(known.parts.map((part) => [part, found[part] ?? 0]));
      return { name, parts, total: Object.values(parts).reduce((sum, size) => sum + size, 0) };
    });
    const highest = moments.reduce((best, moment) => (moment.total > best.total ? moment : best));
    return { moments, highest, total: highest.total };
  }

  function* changes(setup) {
    if (!setup.fused_attention) yield ["use fused attention", { fused_attention: true }];
    if (setup.purpose === "train") {
      if (setup.optimizer === "adamw") yield ["use the fused AdamW", { optimizer: "adamw-fused" }];
      if (setup.precision === "fp32") yield ["train in mixed precision", { precision: "mixed" }];
      if (!setup.checkpointing) yield ["checkpoint the layers", { checkpointing: true }];
    }
    const half = (value) => Math.floor(value / 2);
    if (setup.batch > 1) yield [`halve the batch to ${half(setup.batch)}`, { batch: half(setup.batch) }];
    if (setup.seq_len > 1) {
      yield [`halve the sequences to ${half(setup.seq_len)} tokens`, { seq_len: half(setup.seq_len) }];
    }
    if (setup.purpose === "train") {
      for (const gpus of [2, 4, 8]) {
        if (gpus > setup.data_parallel || setup.sharding < 3) {
          const many = Math.max(gpus, setup.data_parallel);
          yield [`shard everything over ${many} GPUs`, { data_parallel: many, sharding: 3 }];
        }
      }
    } else {
      for (const precision of ["bf16", "int8", "int4"]) {
        if (sizes[precision] < sizes[setup.precision]) yield [`store the weights as ${precision}`, { precision }];
      }
      if (setup.purpose === "generate" && setup.cache !== "fp8") yield ["store the cache as fp8", { cache: "fp8" }];
    }
    for (const gpus of [2, 4, 8]) {
      if (gpus > setup.tensor_parallel) yield [`divide the matrices over ${gpus} GPUs`, { tensor_parallel: gpus }];
    }
  }
  function remedies(shape, setup) {
    const now = predict(shape, setup).total;
    const found = [];
    for (const [change, fields] of changes(setup)) {
      const changed = { ...setup, ...fields };
      if (Object.keys(setupFaults(shape, changed)).length) continue;
      const total = predict(shape, changed).total;
      if (total < 0.995 * now) found.push({ change, fields, total });
    }
    return found;
  }

  function largestBatch(shape, setup, available) {
    const fits = (batch) => predict(shape, { ...setup, batch }).total <= available;
    if (!fits(1)) return 0;
    let [low, high] = [1, 2];
    while (high <= known.largest.count && fits(high)) [low, high] = [high, 2 * high];
    high = Math.min(high, known.largest.count + 1);
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      [low, high] = fits(middle) ? [middle, high] : [low, middle];
    }
    return low;
  }

  return { shapeFaults, setupFaults, precisionsFor, local, parameters, activationsOfLayer, cacheBytes, weightBytes,
    predict, remedies, largestBatch };
};
