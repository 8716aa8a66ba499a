// What is found for a query, for the search box and the search page. MiniSearch finds the entries that have the words
// and weighs how rare a word is and where it stands; what is asked here is which words to look for (synonyms, endings),
// and which kind of thing a person most likely means. Both files that it needs are loaded at the first query.
const siteSearch = {
  root: document.documentElement.dataset.content_root ?? "",
  ready: null,

  // Resolves when queries can be answered.
  load() {
    this.ready ??= Promise.all(["minisearch/minisearch.js", "search-entries.js"].map((name) => this.script(name)))
      .then(() => this.index());
    return this.ready;
  },

  script(name) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: `${this.root}_static/${name}`, onload: resolve, onerror: reject });
      document.head.append(script);
    });
  },

  // Called by search-entries.js.
  receive(kinds, same, rows) {
    this.entries = rows.map(([kind, name, address, detail = "", also = "", text = "", code = ""], id) => (
      { id, kind: kinds[kind], name, address, detail, also, text, code }));
    this.same = same.map((group) => group.map((phrase) => stems(phrase)));
  },

  async index() {
    this.mini = new MiniSearch({
      fields: ["name", "also", "detail", "text", "code"],
      extractField: (entry, field) => field === "also" ? `${entry.also} ${entry.kind} ${asOneWord(entry.name)}` : entry[field],
      tokenize: words,
      processTerm: stem,
    });
    this.entries.forEach((entry) => { entry.calls = [entry.name, ...entry.also.split(" | ")].map(joined); });
    await this.mini.addAllAsync(this.entries, { chunkSize: 300 }); // in pieces, so that typing goes on
  },

  // --- finding ---

  // The entries for a query, best first, each with the words in its text that were asked for.
  find(query) {
    const asked = this.asked(query);
    if (!asked.length) return [];
    const code = /\w[_.]\w/.test(query);
    const parts = this.parts(asked);
    const said = new Set(parts.flatMap(everyWord)), kinds = namedKinds(said);
    const boostDocument = (id) => {
      const { kind } = this.entries[id];
      return (code && kind === "Library" ? 1 : KINDS[kind]) * (kinds.has(kind) ? 3 : 1);
    };
    const options = { ...OPTIONS, boostDocument };
    if (asked.join("").length === 1) Object.assign(options, { fields: ["name"], prefix: true }); // somebody begins to type
    const all = this.mini.search({ combineWith: "AND", queries: parts }, options);
    const some = all.length < 5 && parts.length > 1 ? this.mini.search({ combineWith: "OR", queries: parts }, options) : [];
    const whole = joined(query), core = asked.join("");
    const found = new Map();
    for (const result of [...all, ...some]) {
      if (found.has(result.id)) continue;
      const entry = this.entries[result.id];
      const bonus = nameBonus(entry, whole, core, code || !/\s/.test(query.trim()));
      const share = found.size < all.length ? 1 : 0.5 * (result.queryTerms.length / parts.length) ** 2;
      found.set(result.id, { entry, score: result.score * bonus * share, match: meant(result.match, said) });
    }
    const ranked = [...found.values()].sort((one, other) => other.score - one.score);
    return this.spread(ranked);
  },

  // The words of a query that say something; all of them where none does. What nobody types by hand is cut short.
  asked(query) {
    const all = words(query.slice(0, 300)).filter((word) => word.length <= 40).slice(0, 16);
    const telling = all.filter((word) => !FILLERS.has(word));
    return [...new Set((telling.length ? telling : all).map(stem))];
  },

  // The query as MiniSearch takes it: one part for each word, or for several that have synonyms together.
  parts(asked) {
    const parts = [];
    for (let at = 0; at < asked.length;) {
      let longest = 1, others = [];
      for (const group of this.same) {
        for (const phrase of group) {
          if (phrase.length < longest || !phrase.every((word, index) => asked[at + index] === word)) continue;
          if (phrase.length > longest) others = [];
          longest = phrase.length;
          others.push(...group.filter((other) => other !== phrase && !other.includes("s"))); // "tok/s" is asked for only
        }
      }
      const here = this.phrase(asked.slice(at, at + longest));
      const same = others.map((other) => ({ ...this.phrase(other), prefix: false, fuzzy: false, boost: SYNONYM }));
      parts.push(same.length ? { combineWith: "OR", queries: [here, ...same] } : here);
      at += longest;
    }
    return parts;
  },

  phrase(stemmed) {
    return { combineWith: "AND", queries: stemmed };
  },

  // No page has more than three of the first ten, so that one long page does not hide the others.
  spread(ranked) {
    const seen = new Map(), first = [], later = [];
    for (const result of ranked) {
      const page = result.entry.address.split("#")[0];
      seen.set(page, (seen.get(page) ?? 0) + 1);
      (seen.get(page) <= 3 || first.length >= 10 ? first : later).push(result);
    }
    return [...first.slice(0, 10), ...later, ...first.slice(10)];
  },

  // --- showing, and leading there ---

  // What stands around the first words that were asked for: pieces of text, of which every second was asked for.
  excerpt({ entry, match }) {
    const stemmed = Object.keys(match).filter((word) => match[word].includes("text"));
    if (!stemmed.length || entry.kind === "Glossary") return entry.detail ? [entry.detail] : [];
    const pieces = [...entry.text.matchAll(WORD)].filter(([word]) => stemmed.includes(stem(words(word)[0] ?? "")));
    if (!pieces.length) return [entry.detail];
    const from = pieces[0].index < 60 ? 0 : entry.text.lastIndexOf(" ", pieces[0].index - 40) + 1;
    const shown = [from ? "… " : ""];
    let at = from;
    for (const { 0: word, index } of pieces.filter(({ index }) => index >= from && index < from + 170)) {
      shown[shown.length - 1] += entry.text.slice(at, index);
      shown.push(word, "");
      at = index + word.length;
    }
    const end = entry.text.lastIndexOf(" ", Math.max(from + 190, at + 20));
    shown[shown.length - 1] += entry.text.slice(at, Math.max(end, at)) + (end + 1 < entry.text.length ? " …" : "");
    return shown;
  },

  // A result's two lines, in an element that is a link.
  fill(link, result) {
    const { entry } = result;
    const name = element("span", { class: "search-name" }, entry.name);
    const line = element("span", { class: "search-detail" });
    this.excerpt(result).forEach((piece, index) => line.append(index % 2 ? element("mark", {}, piece) : piece));
    const inside = entry.kind === "Section" || entry.kind === "Figure" ? ` in ${entry.detail}` : "";
    link.append(name, " ", element("span", { class: "search-kind" }, entry.kind + (line.textContent === entry.detail ? "" : inside)));
    if (line.textContent) link.append(" ", line);
    return link;
  },

  // The address of a result. Words that stand in its text and not in its name are marked there (find-on-page.js).
  href({ entry, match }) {
    const inText = Object.keys(match).filter((word) => match[word].some((field) => field === "text" || field === "code"));
    const inName = Object.values(match).some((fields) => fields.includes("name") || fields.includes("also"));
    if (inName || !inText.length) return this.root + entry.address;
    const [page, anchor] = entry.address.split("#");
    return `${this.root}${page}?find=${encodeURIComponent(inText.join(" "))}${anchor ? `#${anchor}` : ""}`;
  },
};

const OPTIONS = {
  boost: { name: 5, also: 4, detail: 1.5, text: 1, code: 0.4 },
  prefix: (term) => term.length >= 2,
  fuzzy: (term) => term.length >= 5 && !/\d/.test(term) ? 0.2 : false,
  weights: { prefix: 0.5, fuzzy: 0.25 },
  processTerm: (term) => term, // they are stemmed already
  tokenize: (term) => [term],
};
const SYNONYM = { name: 3, also: 3, detail: 0.8, text: 0.5, code: 0.2 };

// What somebody most likely means comes first where names and texts fit equally well.
const KINDS = {
  Tutorial: 1.6, Calculator: 1.7, Page: 1.2, Section: 1, Figure: 0.7, Glossary: 1.3, GPU: 1.5, Measurement: 0.55, Claim: 0.5, Library: 0.15,
};

// The kinds of things that a query names, synonyms included: a plot is a figure. "GPU" is not said to see the table.
function namedKinds(said) {
  return new Set(Object.keys(KINDS).filter((kind) => kind !== "GPU" && said.has(stem(kind.toLowerCase()))));
}

function everyWord(part) {
  return typeof part === "string" ? [part] : part.queries.flatMap(everyWord);
}

// Of the words that an entry has, those that are worth showing: not what is merely spelt like a word of the query.
function meant(match, said) {
  const close = (word) => said.has(word) || [...said].some((each) => each.length >= 4 && word.startsWith(each));
  return Object.fromEntries(Object.entries(match).filter(([word]) => close(word)));
}

// What is called as the query says counts most, then what begins with it. Who writes a space does not mean a name in
// code.
function nameBonus(entry, whole, core, mayBeCode) {
  if (entry.kind === "Library" && !mayBeCode) return 0.4;
  if (whole.length === 1) return entry.calls[0].startsWith(whole) ? 10 : 1;
  if (entry.calls[0] === whole) return 4;
  if (entry.calls.includes(whole)) return 3.5;
  if (core.length >= 3 && entry.calls.some((call) => stem(call) === core)) return 2.5;
  return whole.length >= 3 && entry.calls[0].startsWith(whole) ? 1.6 : 1;
}

// Words that say nothing about what is sought.
const FILLERS = new Set("a an and are as at be can do does for from good how i in is it me much many my of on or per the to what when where which why will with you your".split(" "));

const WORD = /[\p{L}\p{N}]+(?:\.\p{N}+)*/gu;

// "Événement KV-cache, 1.5" gives ["evenement", "kv", "cache", "1.5"].
function words(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(WORD) ?? [];
}

// A word without its ending: sampling, sampled and samples are one, and so are American and British spelling.
function stem(word) {
  if (!/^[a-z]{4,}$/.test(word)) return word;
  return word.replace(/is(?=(?:e|es|ed|ing|ation|ations)$)/, "iz").replace(/(?<=^...+)(?:ations?|ings?|ed|es|e|(?<![siu])s)$/, "");
}

function stems(text) {
  return words(text).filter((word, _, all) => !FILLERS.has(word) || all.every((each) => FILLERS.has(each))).map(stem);
}

function joined(text) {
  return words(text).join("");
}

// "KV cache" is also found as "kvcache". Whole sentences are not written so.
function asOneWord(name) {
  const parts = words(name);
  return parts.length > 1 && parts.length < 5 ? parts.join("") : "";
}

function element(tag, attributes, text) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
