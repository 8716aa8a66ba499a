// Opens the folds around what an address points at, where the browser does not do so by itself, and the tab that holds
// it, and shows it if the choice of a verdict has left it out.
function unfold(place) {
  const everything = document.getElementById("gg-filter-all");
  const folds = [];
  for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) folds.push(fold);
  const leftOut = everything && folds.some((fold) => !fold.checkVisibility());
  if (leftOut) everything.checked = true;
  const chosen = place?.closest(".gg-tab-panel")?.previousElementSibling.previousElementSibling; // the button of its tab
  const otherTab = Boolean(chosen && !chosen.checked);
  if (otherTab) chosen.checked = true;
  const closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
  return leftOut || otherTab || closed.length > 0;
}

function addressed() {
  try {
    return document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null; // a percent sign with nothing behind it
  }
}

function unfoldAddressed() {
  if (unfold(addressed())) addressed().scrollIntoView();
}

addEventListener("hashchange", unfoldAddressed);
unfoldAddressed();
