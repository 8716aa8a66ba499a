// Opens the folds around what an address points at, where the browser does not do so by itself.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folds = [];
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) folds.push(fold);
  if (!folds.some((fold) => !fold.open)) return;
  folds.forEach((fold) => { fold.open = true; });
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
