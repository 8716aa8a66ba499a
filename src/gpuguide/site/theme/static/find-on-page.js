// Shows where on a page stands what was sought. An address that search made holds, as `?find=`, the words that were
// found in the text: the first paragraph that has the most of them is brought into view, out of its folds (unfold.js),
// and they are marked. They are taken out of the address before a calculator reads it.
const sought = (() => {
  const address = new URL(location.href);
  const found = (address.searchParams.get("find") ?? "").slice(0, 300).split(" ").filter(Boolean);
  address.searchParams.delete("find");
  if (found.length) history.replaceState(history.state, "", address);
  return found;
})();

function showSought() {
  const within = addressed()?.closest("section, figure, .gg-symptom, .gg-claim") ?? document.querySelector("article");
  if (!sought.length || !within) return;
  const counts = new Map(), marks = [];
  const texts = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const block = text.parentElement.closest("p, li, td, th, dd, dt, pre, figcaption, h1, h2, h3, h4");
    if (!block || text.parentElement.closest("script, style, .headerlink")) continue;
    for (const { 0: word, index } of text.data.matchAll(WORD)) {
      const stemmed = stem(words(word)[0] ?? "");
      if (!sought.includes(stemmed)) continue;
      if (!counts.has(block)) counts.set(block, new Set());
      counts.get(block).add(stemmed);
      const mark = document.createRange();
      mark.setStart(text, index);
      mark.setEnd(text, index + word.length);
      marks.push(mark);
    }
  }
  if (!counts.size) return;
  const most = Math.max(...[...counts.values()].map((found) => found.size));
  const [block] = [...counts].find(([, found]) => found.size === most);
  unfold(block);
  if (globalThis.Highlight && CSS.highlights) CSS.highlights.set("sought", new Highlight(...marks));
  block.tabIndex = -1;
  block.focus({ preventScroll: true });
  block.scrollIntoView({ block: "center" });
}

addEventListener("load", showSought); // after search.js, and after the browser has gone to the anchor, which takes the focus
