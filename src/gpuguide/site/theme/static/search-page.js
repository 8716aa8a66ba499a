// The search page: all results for the query in its address.
const searchPage = {
  async start(field) {
    const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
    const status = document.getElementById("search-status");
    field.value = query;
    if (!query) return field.focus();
    document.title = `${[...query].slice(0, 60).join("")} · ${document.title}`;
    status.textContent = "Searching …";
    await siteSearch.load().catch(() => { status.textContent = "The list of what is on this site could not be loaded."; });
    if (!siteSearch.mini) return;
    const answer = siteSearch.answer(query), { found } = answer;
    status.replaceChildren(...siteSearch.report(answer, query));
    document.getElementById("search-results").append(...found.slice(0, MOST).map((result) => this.item(result)));
    if (found.length > MOST) status.append(`, of which these are the first ${MOST}`);
  },

  item(result) {
    const item = element("li", {});
    item.append(siteSearch.fill(element("a", { href: siteSearch.href(result) }), result));
    return item;
  },
};

const MOST = 60;

searchPage.start(document.getElementById("search-field"));
