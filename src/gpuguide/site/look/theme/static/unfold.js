// Opens the folds around what an address points at, where the browser does not do so by itself.
function unfold(place) {
  const folds = [];
  for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) folds.push(fold);
  const closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
  return closed.length > 0;
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
