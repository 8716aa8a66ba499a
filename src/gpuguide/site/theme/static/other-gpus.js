// The switch under figures that another GPU can be drawn in: all of them change at once, and stay so on the next page.
"use strict";
(() => {
  const root = document.documentElement;
  const switches = document.querySelectorAll(".gg-others-switch");
  const show = () => switches.forEach((each) => each.setAttribute("aria-pressed", String("others" in root.dataset)));
  switches.forEach((each) => each.addEventListener("click", () => {
    const before = each.getBoundingClientRect().top;
    if ("others" in root.dataset) {
      delete root.dataset.others;
      localStorage.removeItem("others");
    } else {
      root.dataset.others = "shown";
      localStorage.setItem("others", "shown");
    }
    show();
    window.scrollBy({ top: each.getBoundingClientRect().top - before, behavior: "instant" });  // it stays under the hand
  }));
  show();
})();
