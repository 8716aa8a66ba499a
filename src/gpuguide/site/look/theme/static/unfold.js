// Opens the folds around what an address points at, where the browser does not do so by itself, and shows it if the
// choice of a verdict has left it out.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const everything = document.getElementById("gg-filter-all");
  const folds = [];
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) folds.push(fold);
  const left_out = everything && folds.some((fold) => !fold.checkVisibility());
  if (left_out) everything.checked = true;
  if (!left_out && !folds.some((fold) => !fold.open)) return;
  folds.forEach((fold) => { fold.open = true; });
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
