// Marks what is wider than its place as long as there is more of it to the right, which its edge then shows.
"use strict";
(() => {
  const places = ".pst-scrollable-table-container, div.math, .gg-scroll, .highlight pre";
  function mark(place) {
    const more = place.scrollWidth - place.clientWidth - place.scrollLeft > 2;
    place.classList.toggle("gg-more-to-come", more);
  }
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => mark(target)));
  function watch(place) {
    if (place.dataset.edges) return;
    place.dataset.edges = "watched";
    place.addEventListener("scroll", () => mark(place), { passive: true });
    sizes.observe(place);  // calls back at once, too
  }
  const all = () => document.querySelectorAll(places).forEach(watch);
  all();
  for (const made of document.querySelectorAll(".gg-calculator")) {  // its tables come and go
    new MutationObserver(all).observe(made, { childList: true, subtree: true });
  }
})();
