// Opens the folds around a place, which the browser does not always do by itself, and shows it if the choice of a
// verdict has left it out. Returns whether anything changed.
function unfold(place) {
  const folds = [];
  for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) folds.push(fold);
  const everything = document.getElementById("gg-filter-all");
  const left_out = everything && folds.some((fold) => !fold.checkVisibility());
  if (left_out) everything.checked = true;
  const closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
  return left_out || closed.length > 0;
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
